"""Who holds which device of this host, and what the device was like before.

One file an attachment, named ``<device>@<container>@<interface>.json``: a torn file still says who held what. It is
written before the first change to the kernel, and removed after the last one is taken back. So whoever finds a
record while holding its locks knows that somebody was killed half-way, or that the device is in use. What it says
is kept a second time beside the kernel's own state, on tmpfs: a file torn by a power cut describes a kernel that is
gone, and for one that is damaged while the kernel lives on there is the copy. Damaged is what cannot be read, or cannot
be true: a record of another attachment than its file is named after, values that no ADD wrote, a copy of another boot.

Locks are byte ranges of two files, one for attachments and one for devices, held by open file descriptions: the
kernel drops them with the process, and no lock file is ever left behind or unlinked under a holder. Two names may
share a byte; then they wait for each other, which is slow once in 2^61, never wrong. Order: attachment, then device.

Source: design section 4; fcntl(2), "Open file description locks".
"""

import errno
import fcntl
import hashlib
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ubhost import statefile
from ubhost.errors import Busy, HostFault, InvalidRequest
from ubhost.plausible import is_plausible, is_unicode
from ubhost.record import Record
from ubhost.roots import Roots

VERSION = 1
SEPARATOR = "@"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FLOCK = struct.Struct("hhqqi4x")  # struct flock on 64-bit Linux: type, whence, start, length, pid


class Ledger:
    """The records of one host. ``boot_id`` tells this boot from others."""

    def __init__(self, roots: Roots, boot_id: str | None = None) -> None:
        self.folder = roots.state / "attachments"
        self.copies = roots.run / "attachments"
        self._locks = roots.run / "locks"
        self.boot_id = _BOOT_ID.read_text(encoding="ascii").strip() if boot_id is None else boot_id

    def of_device(self, device: str) -> tuple[Record, ...]:
        """Return one record, or one for each pod that shares the device."""
        return tuple(self._read(names) for names in sorted(self._names()) if names[0] == device)

    def of_attachment(self, container: str, ifname: str) -> tuple[Record, ...]:
        return tuple(self._read(names) for names in self._names() if names[1:] == (container, ifname))

    def of_container(self, container: str) -> tuple[Record, ...]:
        return tuple(self._read(names) for names in self._names() if names[1] == container)

    def held(self) -> dict[str, tuple[str, str]]:
        """Return who holds each device (container, interface), from file names alone."""
        return {device: (container, ifname) for device, container, ifname in self._names()}

    def records(self) -> tuple[Record, ...]:
        return tuple(self._read(names) for names in sorted(self._names()))

    def write(self, record: Record) -> None:
        """Put a record on disk.

        Raises:
            InvalidRequest: a name cannot be part of a file name.
            HostFault: the folder cannot be written; nothing was changed.
        """
        path, content = self._path(record), msgspec.to_builtins(record)
        copy = self.copies / path.name
        try:
            for folder in (self.copies, self.folder):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise HostFault(f"cannot make {error.filename}: {error.strerror}") from error
        try:
            statefile.write(copy, VERSION, content, durable=False)
        except HostFault:  # then none, rather than an old one
            with suppress(OSError):
                copy.unlink()
        statefile.write(path, VERSION, content)

    def remove(self, record: Record) -> None:
        """Take a record off the disk, or whatever lies in its place.

        Raises:
            HostFault: it is a folder with something in it, or the disk refuses.
        """
        path = self._path(record)
        try:
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            path.unlink(missing_ok=True)
        except OSError as error:
            raise HostFault(f"cannot remove {path}: {error.strerror}; move it away, then try again") from error
        with suppress(OSError):  # it counts beside a record only
            (self.copies / path.name).unlink()

    @contextmanager
    def attachment_lock(self, container: str, ifname: str, patience: float) -> Iterator[None]:
        """Keep others from this attachment; wait up to ``patience`` seconds.

        Raises:
            Busy: somebody else still holds it.
        """
        with self._lock("attachments", f"{container}{SEPARATOR}{ifname}", patience):
            yield

    @contextmanager
    def device_lock(self, device: str, patience: float) -> Iterator[None]:
        """Keep others from this device; see ``attachment_lock``."""
        with self._lock("devices", device, patience):
            yield

    def _names(self) -> Iterator[tuple[str, str, str]]:
        try:
            entries = os.listdir(self.folder)  # noqa: PTH208 - names only, on the hot path
        except FileNotFoundError:
            return
        except OSError as error:
            raise HostFault(f"cannot read {self.folder}: {error.strerror}") from error
        for entry in entries:
            parts = entry.removesuffix(".json").split(SEPARATOR, 2)
            if entry.endswith(".json") and len(parts) == 3 and all(map(_is_name, parts[:2])) and is_unicode(entry):
                yield parts[0], parts[1], parts[2]

    def _read(self, names: tuple[str, str, str]) -> Record:
        damaged = Record(*names, is_damaged=True)
        path = self._path(damaged)
        for file in (path, self.copies / path.name):
            try:
                content = statefile.read(file, VERSION)
                if content is None:  # removed since it was listed
                    return damaged
                record = msgspec.convert(content, Record)
            except (statefile.Damaged, msgspec.ValidationError, UnicodeEncodeError):
                continue
            except HostFault as fault:
                if not isinstance(fault.__cause__, PermissionError):  # of one file in a folder of ours
                    raise
                continue
            is_its_own = (record.device, record.container, record.ifname) == names
            is_of_now = file is path or record.boot_id == self.boot_id  # a copy lies where nothing outlives a boot
            if is_its_own and is_of_now and is_plausible(record):
                return record
        return damaged

    def _path(self, record: Record) -> Path:
        for name in (record.device, record.container):
            if not _is_name(name):
                raise InvalidRequest(f"{name!r} cannot be the name of a device or container")
        return self.folder / f"{record.device}{SEPARATOR}{record.container}{SEPARATOR}{record.ifname}.json"

    @contextmanager
    def _lock(self, kind: str, name: str, patience: float) -> Iterator[None]:
        try:
            self._locks.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(self._locks / kind, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise HostFault(f"cannot lock {self._locks / kind}: {error.strerror}") from error
        try:
            _wait(fd, int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 3, name, patience)
            yield
        finally:
            os.close(fd)


def _is_name(name: str) -> bool:
    return bool(name) and "/" not in name and SEPARATOR not in name and not name.startswith(".")


def _wait(fd: int, byte: int, name: str, patience: float) -> None:
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    deadline = time.monotonic() + patience
    pause = 0.001
    while True:
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise HostFault(f"cannot lock {name}: {error.strerror}") from error
        else:
            return
        if time.monotonic() >= deadline:
            raise Busy(f"{name} is in use by another call for more than {patience:g} s")
        time.sleep(pause)
        pause = min(pause * 2, 0.02)

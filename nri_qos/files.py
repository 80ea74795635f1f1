"""Reading and writing the files of one cgroup hierarchy. Nothing is decided here.

Paths come from what the runtime says, so links are not followed: root writes here. A file with a line for each device
is read and written by line: ``io.max 8:0``, or ``io.max nvme0n1``, the kernel's name of the disk.

Source: reference/nri.md section 3.1 (ENODEV, ENOENT, writes of no bytes); Documentation/admin-guide/cgroup-v2.rst,
"nested keyed" files.
"""

import errno
import os
import stat
from pathlib import Path

from nri_qos.settings import UNLIMITED


class Gone(Exception):
    """The cgroup is not there any more."""


class Hierarchy:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._disks = root.parents[1] / "class/block"

    def read(self, cgroup: str, file: str) -> str:
        """Return what a file says, or what its line for a device does.

        Raises:
            Gone: the cgroup is not there.
            OSError: the file or the device is not there, or cannot be read.
        """
        name, _, device = file.partition(" ")
        text = self._read(cgroup, name)
        if not device:
            return text
        found = _lines(text).get(self._key(name, device))
        if found is None and name == "rdma.max":  # which has a line for each device that there is
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), device)
        return UNLIMITED[name] if found is None else found

    def write(self, cgroup: str, file: str, value: str) -> None:
        """Write ``value``, which may be empty.

        Raises:
            Gone: the cgroup is not there.
            OSError: the kernel refuses.
        """
        name, _, device = file.partition(" ")
        key = self._key(name, device) if device else ""
        data = (f"{key} {value}" if key else value or "\n").encode()  # no bytes at all do not reach the kernel
        try:
            fd = os.open(f"{self._root}/{cgroup}/{name}", os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                size = os.fstat(fd).st_size  # of a plain file below another root; the kernel's have none
                if size and key:
                    data = _with_line(self._read(cgroup, name), key, value, UNLIMITED[name])
                os.write(fd, data.ljust(size, b"\n"))  # no reader ever sees the end of a longer text behind it
                if size > len(data):
                    os.ftruncate(fd, len(data))
            finally:
                os.close(fd)
        except OSError as error:
            self._raise_gone(cgroup, file, error)
            raise

    def exists(self, cgroup: str) -> bool:
        """Whether ``cgroup`` is there; one that cannot be looked at is."""
        try:
            return stat.S_ISDIR(Path(self._root, cgroup).stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def names(self, cgroup: str) -> frozenset[str]:
        """Return the names of the files in ``cgroup``; none if it is not there."""
        try:
            return frozenset(entry.name for entry in os.scandir(self._root / cgroup))
        except OSError:
            return frozenset()

    def children(self, cgroup: str) -> list[str]:
        """Return the cgroups inside ``cgroup``; "" is the root."""
        prefix = f"{cgroup}/" if cgroup else ""
        try:
            found = [entry.name for entry in os.scandir(self._root / cgroup) if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return []
        return [prefix + name for name in sorted(found)]

    def threads(self, cgroup: str) -> set[str]:
        """Return the ids of the threads in ``cgroup``; none if it is not there. The list can be long."""
        try:
            return set(Path(self._root, cgroup, "cgroup.threads").read_text(encoding="ascii").split())
        except OSError:
            return set()

    def inherited(self, cgroup: str, file: str) -> str:
        """Return what an empty ``cpuset.cpus`` or ``cpuset.mems`` of ``cgroup`` means: what its parent has.

        Raises:
            Gone: the parent is not there.
            OSError: it cannot be read.
        """
        return self.read(cgroup.rpartition("/")[0], f"{file}.effective")

    def _read(self, cgroup: str, name: str) -> str:
        try:
            fd = os.open(f"{self._root}/{cgroup}/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                return os.read(fd, 65536).decode(errors="replace").strip()
            finally:
                os.close(fd)
        except OSError as error:
            self._raise_gone(cgroup, name, error)
            raise

    def _key(self, name: str, device: str) -> str:
        """Return what a line of ``device`` begins with: the numbers of a disk, the name of anything else."""
        if name == "rdma.max" or ":" in device:
            return device
        return (self._disks / device / "dev").read_text(encoding="ascii", errors="replace").strip()

    def _raise_gone(self, cgroup: str, file: str, error: OSError) -> None:
        """Raise ``Gone`` if that is what an error means; a device that is not there is ENODEV as well."""
        is_gone = error.errno == errno.ENODEV and " " not in file
        if is_gone or (error.errno in (errno.ENOENT, errno.ENODEV) and not self.exists(cgroup)):
            raise Gone(cgroup) from error


def _lines(text: str) -> dict[str, str]:
    return {key: rest.strip() for key, _, rest in (line.strip().partition(" ") for line in text.splitlines())}


def _with_line(text: str, key: str, value: str, unlimited: str) -> bytes:
    """Return the text of a plain file after a write that the kernel would take as one line of it."""
    lines = _lines(text) | {key: value}
    if value == unlimited and ":" in key:
        del lines[key]  # of a disk that nothing limits the kernel tells nothing
    return "\n".join(f"{key} {rest}" for key, rest in lines.items()).encode() or b"\n"

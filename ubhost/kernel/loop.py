"""Loop devices: a file as a block device. What one is for is told by its name, which its maker gives it.

A device outlives whoever attached it, so a maker that was killed finds its own by name. Every function raises
``OSError``. Source: Linux include/uapi/linux/loop.h; loop(4).
"""

import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

NAME_MAX = 63  # bytes
MAJOR = 7
_DEV, _SYS = Path("/dev"), Path("/sys/block")
_CONFIGURE, _CLEAR, _SET_STATUS, _STATUS, _CAPACITY, _FREE = 0x4C0A, 0x4C01, 0x4C04, 0x4C05, 0x4C07, 0x4C82
_READ_ONLY, _AUTOCLEAR, _DIRECT = 1, 4, 16
_TRIES = 64  # another process may take the free number first


class _Info(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_uint64),
        ("inode", ctypes.c_uint64),
        ("rdevice", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("sizelimit", ctypes.c_uint64),
        ("number", ctypes.c_uint32),
        ("encrypt_type", ctypes.c_uint32),
        ("encrypt_key_size", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("file_name", ctypes.c_char * 64),
        ("crypt_name", ctypes.c_char * 64),
        ("encrypt_key", ctypes.c_char * 32),
        ("init", ctypes.c_uint64 * 2),
    )


class _Config(ctypes.Structure):
    _fields_ = (
        ("fd", ctypes.c_uint32),
        ("block_size", ctypes.c_uint32),
        ("info", _Info),
        ("reserved", ctypes.c_uint64 * 8),
    )


@dataclass(frozen=True, slots=True)
class Loop:
    """A device that has a file: ``device`` and ``inode`` say which, as stat(2) does."""

    number: int
    name: str
    device: int
    inode: int
    is_read_only: bool


def is_there(control: Path = _DEV / "loop-control") -> bool:
    """Whether the kernel has loop devices, or would load them."""
    return control.exists()


def attach(file: int, name: str, *, is_read_only: bool) -> int:
    """Make the open ``file`` a block device called ``name``; return its number. It goes past the page cache if it can.

    Past it, because the device has one of its own: else all bytes would be in memory twice.
    """
    info = _Info(flags=_DIRECT | (_READ_ONLY if is_read_only else 0), file_name=name.encode()[:NAME_MAX])
    config = _Config(fd=file, info=info)
    with _opened(_DEV / "loop-control") as control:
        for _ in range(_TRIES):
            number = fcntl.ioctl(control, _FREE)
            with suppress(FileExistsError):  # where /dev is a container's own, nobody makes nodes
                os.mknod(_DEV / f"loop{number}", stat.S_IFBLK | 0o600, os.makedev(MAJOR, number))
            with _opened(_DEV / f"loop{number}", os.O_RDONLY if is_read_only else os.O_RDWR) as device:
                try:
                    fcntl.ioctl(device, _CONFIGURE, config)
                except OSError as error:
                    if error.errno == errno.EBUSY:
                        continue
                    raise
            return number
    raise OSError(errno.EBUSY, "every free loop device was taken by somebody else", str(_DEV))


def detach(number: int) -> None:
    """Take the file from a device; one that is open somewhere loses it with its last close. It may have none."""
    with _opened(_DEV / f"loop{number}") as device:
        try:
            fcntl.ioctl(device, _CLEAR)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise


def keep(number: int) -> bool:
    """Take back a ``detach`` that waits for the last close; return whether the device has a file still."""
    with _opened(_DEV / f"loop{number}") as device:  # while it is open here, nobody's close is the last
        info = _Info()
        try:
            fcntl.ioctl(device, _STATUS, info)
            if info.flags & _AUTOCLEAR:
                info.flags &= ~_AUTOCLEAR
                fcntl.ioctl(device, _SET_STATUS, info)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return False
    return True


def refresh(number: int) -> None:
    """Let a device have the size that its file has now."""
    with _opened(_DEV / f"loop{number}") as device:
        fcntl.ioctl(device, _CAPACITY)


def size(number: int) -> int:
    """Return the bytes of a device; 0 if it has no file."""
    return int((_SYS / f"loop{number}/size").read_text(encoding="ascii")) * 512


def all_attached() -> Iterator[Loop]:
    """Yield every device that has a file."""
    for entry in sorted(_SYS.glob("loop[0-9]*/loop/backing_file")):
        number = int(entry.parts[-3].removeprefix("loop"))
        # It may go while we look.
        with suppress(OSError), _opened(_DEV / f"loop{number}") as device:
            info = _Info()
            fcntl.ioctl(device, _STATUS, info)
            name = info.file_name.decode(errors="replace")  # of a stranger: cut at 63 bytes, perhaps inside a character
            yield Loop(number, name, _device(info.device), info.inode, bool(info.flags & _READ_ONLY))


@contextmanager
def _opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _device(encoded: int) -> int:
    """Return a device number as stat(2) has it; the kernel writes it as ``huge_encode_dev``."""
    return os.makedev((encoded >> 8) & 0xFFF, (encoded & 0xFF) | ((encoded >> 12) & 0xFFF00))

"""Open files below a directory without ever leaving it: openat2(2) with RESOLVE_BENEATH.

A name from outside (a volume id, a model's path) may hold ``..``, an absolute path, or pass a symbolic link that
somebody planted; the kernel refuses all of them in one step, without a window between check and use.
"""

import ctypes
import os
import stat
from pathlib import Path

from ubhost.errors import InvalidRequest

_OPENAT2 = 437
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_MODES = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def open_beneath(folder: int, name: str, flags: int, mode: int = 0) -> int:
    """Return a descriptor of ``name`` below the directory ``folder``; no symbolic link on the way is followed.

    Raises:
        InvalidRequest: ``name`` cannot be a name in a directory (empty, or with a zero byte).
        OSError: as open(2); EXDEV if ``name`` leads outside, ELOOP if it passes a symbolic link.
    """
    if not name or "\0" in name:
        raise InvalidRequest(f"{name!r} is not a name in a directory")
    how = _How(flags | os.O_CLOEXEC, mode & _MODES, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS)
    result = int(
        _libc.syscall(
            ctypes.c_long(_OPENAT2),
            ctypes.c_int(folder),
            os.fsencode(name),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
    )
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result


def open_folder(path: Path) -> int:
    """Return a descriptor of the directory ``path``, good for ``open_beneath`` and for binding, not for reading."""
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

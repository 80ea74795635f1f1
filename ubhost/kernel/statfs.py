"""What kind of file system a path is on. Source: statfs(2), which Python offers without the kind."""

import ctypes
import os
from pathlib import Path

CGROUP2_SUPER_MAGIC = 0x63677270

_libc = ctypes.CDLL(None, use_errno=True)


def magic(path: Path) -> int:
    """Return ``f_type``, the first word of the answer. Raises ``OSError``."""
    answer = (ctypes.c_long * 32)()
    if _libc.statfs(os.fsencode(path), ctypes.byref(answer)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return int(answer[0]) & 0xFFFFFFFF

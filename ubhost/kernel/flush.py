"""Bring what was written to the disk: syncfs(2), which Python does not have."""

import ctypes
import os
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syncfs.argtypes = (ctypes.c_int,)


def file_system(folder: Path) -> None:
    """Return when all that was written to the file system of ``folder`` is on its disk.

    Raises:
        OSError: some of it could not be written.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)

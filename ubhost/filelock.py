"""A lock between programs and threads: flock(2) on a file of its own, which stays."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ubhost.errors import HostFault


@contextmanager
def locked(path: Path, *, folder_mode: int = 0o700) -> Iterator[None]:
    """Wait for the lock, and hold it for the body; the folder is made where there is none.

    Raises:
        HostFault: the file cannot be made, or something else is in its place.
    """
    try:
        path.parent.mkdir(mode=folder_mode, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise HostFault(f"cannot lock {path}: {error.strerror or error}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)

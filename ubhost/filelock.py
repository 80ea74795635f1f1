"""A lock between programs and threads: flock(2) on a file of its own, which stays."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ubhost.errors import Busy, HostFault


@contextmanager
def locked(path: Path, *, folder_mode: int = 0o700, waits: bool = True) -> Iterator[None]:
    """Hold the lock for the body, and wait for it unless told not to; the folder is made where there is none.

    Raises:
        Busy: somebody else holds it, and we do not wait.
        HostFault: the file cannot be made, or something else is in its place.
    """
    try:
        path.parent.mkdir(mode=folder_mode, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise HostFault(f"cannot lock {path}: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise Busy(f"{path} is locked by another process") from error
        yield
    finally:
        os.close(fd)

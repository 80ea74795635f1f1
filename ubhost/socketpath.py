"""Unix sockets: at paths longer than the kernel takes (107 bytes), as on a simulated node; and who is there."""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST = 107  # bytes of sun_path without its final zero


@contextmanager
def short(path: Path) -> Iterator[str]:
    """Give a path to the same socket that is short enough, valid in this process and inside the body only."""
    if len(os.fsencode(path)) <= LONGEST:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listens(path: Path) -> bool:
    """Whether somebody accepts connections there: a kubelet that was killed leaves its socket behind."""
    try:
        with short(path) as address, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as caller:
            return caller.connect_ex(address) in (0, errno.EAGAIN)
    except OSError:  # its folder is missing
        return False


def identity(path: Path) -> tuple[int, int] | None:
    """Return what tells one socket at a path from its successor; ``None`` if there is none.

    Inode numbers are used again at once on some file systems, the time of the last change is not.
    """
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return (found.st_ino, found.st_ctime_ns) if stat.S_ISSOCK(found.st_mode) else None

"""A segment of memory that pods of one host map together: one file on a file system of its own.

The file system is just large enough and has room for that file only, so no pod can fill the host's memory through
it by growing the file or adding others. A page counts for the pod that touches it first.

The mount must be seen by the container runtime: an agent in a container needs the folder with mount propagation
``Bidirectional``.

Source: tmpfs(5); Linux Documentation/filesystems/tmpfs.rst.
"""

import contextlib
import os
from pathlib import Path

from ubhost.errors import HostFault
from ubhost.kernel import mounts

NAME = "segment"
PAGE = 4096  # bytes
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 2, 4, 8, 32


def make(folder: Path, size: int) -> None:
    """Have ``folder``/segment of ``size`` bytes at least. It only grows, for the pods that have it mapped.

    Raises:
        HostFault: the kernel refused.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not folder.is_mount():
            _mount(folder, size, 0)
        elif (folder / NAME).stat().st_size < size:
            _mount(folder, size, MS_REMOUNT)
        fd = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            os.fchmod(fd, 0o666)  # pods run as any user; only those of the network have it mounted
            if os.fstat(fd).st_size < size:
                os.ftruncate(fd, size)
        finally:
            os.close(fd)
    except OSError as error:
        raise HostFault(f"cannot make {size} bytes of shared memory in {folder}: {error.strerror}") from error


def remove(folder: Path) -> None:
    """Take it off the host. What a dying pod still has mapped goes with its mapping."""
    if folder.is_mount():
        try:
            mounts.unmount(folder, lazy=True)
        except OSError as error:
            raise HostFault(f"cannot unmount {folder}: {error.strerror}") from error
    with contextlib.suppress(OSError):
        folder.rmdir()


def _mount(folder: Path, size: int, flags: int) -> None:
    limits = f"size={-(-size // PAGE) * PAGE},nr_inodes=2,mode=0755"
    mounts.mount("ub-shm", folder, "tmpfs", limits, flags | MS_NOSUID | MS_NODEV | MS_NOEXEC)

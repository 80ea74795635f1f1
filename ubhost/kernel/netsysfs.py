"""The sysfs that a process inside another network namespace would see.

Classes of network devices are *namespaced*: a mount of sysfs shows the devices of the namespace it was made in. So
we make such a mount and read it, without attaching it anywhere: nobody else sees it, nothing is left to clean up
but one descriptor, no child is forked, and the thread is away for two system calls only.

Source: Linux fs/sysfs/mount.c; fsopen(2), fsmount(2).
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ubhost.errors import HostFault
from ubhost.kernel.netns import inode, visiting

SYS_FSOPEN, SYS_FSCONFIG, SYS_FSMOUNT = 430, 431, 432  # the same on every architecture
FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC = 1, 1
FSCONFIG_CMD_CREATE = 6
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 1, 2, 4, 8

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def sysfs_of(netns: int) -> Iterator[Path]:
    """Give the path of a read-only sysfs as ``netns`` (a descriptor) sees it, for the time of the body.

    Links in it must be read, not followed: the path leads through /proc.

    Raises:
        HostFault: the namespace is gone, or we may not mount (CAP_SYS_ADMIN).
    """
    with visiting(netns):
        mount = _mount_detached(netns)
    try:
        yield Path(f"/proc/self/fd/{mount}")
    finally:
        os.close(mount)


def _mount_detached(netns: int) -> int:
    attributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC
    try:
        context = _syscall(SYS_FSOPEN, b"sysfs", FSOPEN_CLOEXEC)
        try:
            _syscall(SYS_FSCONFIG, context, FSCONFIG_CMD_CREATE, None, None, 0)
            return _syscall(SYS_FSMOUNT, context, FSMOUNT_CLOEXEC, attributes)
        finally:
            os.close(context)
    except OSError as error:
        raise HostFault(f"cannot read sysfs of net:[{inode(netns)}]: {error.strerror}") from error


def _syscall(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result

"""Project quotas of XFS by ioctl(2) and quotactl(2): a folder and all below it belong to a project, which has a limit.

Every function raises ``OSError`` with the path concerned. Source: Linux include/uapi/linux/fs.h (struct fsxattr),
include/uapi/linux/dqblk_xfs.h (struct fs_disk_quota, fs_quota_stat), quotactl(2).
"""

import ctypes
import errno
import fcntl
import os
import secrets
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ubhost.kernel import mountinfo

_QUOTACTL_FD = 443  # on every architecture; Linux 5.14
_PROJECT = 2  # PRJQUOTA
_GET_QUOTA, _SET_LIMIT, _GET_STATE = 0x5803, 0x5804, 0x5805
_ENFORCED = 1 << 5  # FS_QUOTA_PDQ_ENFD
_HARD_BLOCKS = 1 << 3  # FS_DQ_BHARD
_BLOCK = 512
_INHERIT = 0x200  # FS_XFLAG_PROJINHERIT

_FSXATTR = struct.Struct("=IIIII8s")
_QUOTA = struct.Struct("=bbHI6QiiHHbbbbQQQiHh8s")
_STATE = struct.Struct("=bxHb251x")
_FSGETXATTR, _FSSETXATTR = 2 << 30 | _FSXATTR.size << 16 | 0x581F, 1 << 30 | _FSXATTR.size << 16 | 0x5820

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def is_xfs(path: Path) -> bool:
    """Whether ``path`` lies on XFS."""
    return mountinfo.containing(mountinfo.read(), path.resolve()).fstype == "xfs"


def enforces_projects(path: Path) -> bool:
    """Whether the file system of ``path`` is XFS and was mounted so that the limits of projects hold."""
    try:
        return is_xfs(path) and bool(_STATE.unpack(_quotactl(path, _GET_STATE, 0, bytes(_STATE.size)))[1] & _ENFORCED)
    except OSError:
        return False


def make_project(path: Path) -> None:
    """Let the folder ``path``, which is empty, and all that will be below it be a project of their own."""
    number = next(each for each in _numbers() if not _is_taken(path, each))
    with _opened(path) as folder:
        flags, extent, extents, _, cow, rest = _FSXATTR.unpack(fcntl.ioctl(folder, _FSGETXATTR, bytes(_FSXATTR.size)))
        fcntl.ioctl(folder, _FSSETXATTR, _FSXATTR.pack(flags | _INHERIT, extent, extents, number, cow, rest))


def project(path: Path) -> int:
    """Return the number of the project that ``path`` belongs to; 0 is none."""
    with _opened(path) as folder:
        return int(_FSXATTR.unpack(fcntl.ioctl(folder, _FSGETXATTR, bytes(_FSXATTR.size)))[3])


def limit(path: Path, number: int, size: int) -> None:
    """Let a project of the file system of ``path`` have at most ``size`` bytes; 0 lifts the limit."""
    blocks = -(-size // _BLOCK)
    head = (1, _PROJECT, _HARD_BLOCKS, number, blocks)
    _quotactl(path, _SET_LIMIT, number, _QUOTA.pack(*head, *[0] * 5, *[0] * 8, 0, 0, 0, 0, 0, 0, b""))


def used(path: Path, number: int) -> int:
    """Return the bytes that a project uses."""
    try:
        return int(_QUOTA.unpack(_quotactl(path, _GET_QUOTA, number, bytes(_QUOTA.size)))[8]) * _BLOCK
    except FileNotFoundError:  # nothing was ever written
        return 0


def _numbers() -> Iterator[int]:
    while True:
        yield 0x10000 + secrets.randbelow(2**31 - 0x10000)  # small numbers are people's


def _is_taken(path: Path, number: int) -> bool:
    try:
        _quotactl(path, _GET_QUOTA, number, bytes(_QUOTA.size))
    except FileNotFoundError:
        return False
    return True


def _quotactl(path: Path, command: int, number: int, argument: bytes) -> bytes:
    buffer = ctypes.create_string_buffer(argument, len(argument))
    what = ctypes.c_uint(command << 8 | _PROJECT)
    with _opened(path) as folder:
        done = _libc.syscall(ctypes.c_long(_QUOTACTL_FD), ctypes.c_int(folder), what, ctypes.c_uint(number), buffer)
    if done and ctypes.get_errno() == errno.ENOSYS:
        device = os.fsencode(mountinfo.containing(mountinfo.read(), path.resolve()).source)
        done = _libc.quotactl(what, device, ctypes.c_int(number), buffer)
    if done:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return buffer.raw


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield folder
    finally:
        os.close(folder)

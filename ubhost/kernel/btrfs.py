"""Subvolumes, snapshots and quotas of btrfs by ioctl(2): no ``btrfs`` program, errno instead of text.

Every function raises ``OSError`` with the path concerned. Source: Linux include/uapi/linux/btrfs.h and btrfs_tree.h;
quota numbers from /sys/fs/btrfs/<uuid>/qgroups (Linux 5.9).
"""

import fcntl
import os
import struct
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MAGIC = 0x9123683E
_SUBVOLUME_ROOT_INODE = 256
_LIMIT_REFERENCED = 1
_QUOTA_ENABLE = 1


def _ioctl_number(direction: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | 0x94 << 8 | number


_VOL_ARGS = struct.Struct("=q4088s")
_VOL_ARGS_V2 = struct.Struct("=qQQ32s4040s")
_QGROUP_LIMIT = struct.Struct("=QQQQQQ")
_INO_LOOKUP = struct.Struct("=QQ4080s")
_QUOTA_CTL = struct.Struct("=QQ")
_SUBVOL_CREATE = _ioctl_number(1, 14, _VOL_ARGS.size)
_SNAP_DESTROY = _ioctl_number(1, 15, _VOL_ARGS.size)
_INO_LOOKUP_NUMBER = _ioctl_number(3, 18, _INO_LOOKUP.size)
_SYNC = _ioctl_number(0, 8, 0)
_SNAP_CREATE_V2 = _ioctl_number(1, 23, _VOL_ARGS_V2.size)
_FS_INFO = _ioctl_number(2, 31, 1024)
_QUOTA_CTL_NUMBER = _ioctl_number(3, 40, _QUOTA_CTL.size)
_QGROUP_LIMIT_NUMBER = _ioctl_number(2, 43, _QGROUP_LIMIT.size)


def is_btrfs(path: Path) -> bool:
    """Whether ``path`` lies on btrfs; asked by an ioctl that no other file system answers."""
    try:
        _fs_uuid(path)
    except OSError:
        return False
    return True


def is_subvolume(path: Path) -> bool:
    return path.is_dir() and path.lstat().st_ino == _SUBVOLUME_ROOT_INODE and is_btrfs(path)


def enable_quota(path: Path) -> None:
    """Switch quotas on for the file system of ``path``; nothing happens if they are."""
    if not _qgroups(path).is_dir():
        with _opened(path) as folder:
            fcntl.ioctl(folder, _QUOTA_CTL_NUMBER, bytearray(_QUOTA_CTL.pack(_QUOTA_ENABLE, 0)))


def make_subvolume(path: Path) -> None:
    with _opened(path.parent) as parent:
        fcntl.ioctl(parent, _SUBVOL_CREATE, bytearray(_VOL_ARGS.pack(0, os.fsencode(path.name))))


def snapshot(source: Path, target: Path) -> None:
    """Make ``target`` a writable snapshot of the subvolume ``source``, of one moment."""
    with _opened(source) as original, _opened(target.parent) as parent:
        arguments = bytearray(_VOL_ARGS_V2.pack(original, 0, 0, b"", os.fsencode(target.name)))
        fcntl.ioctl(parent, _SNAP_CREATE_V2, arguments)


def remove_subvolume(path: Path) -> None:
    with _opened(path.parent) as parent:
        fcntl.ioctl(parent, _SNAP_DESTROY, bytearray(_VOL_ARGS.pack(0, os.fsencode(path.name))))


def limit(path: Path, size: int) -> None:
    """Let the subvolume ``path`` refer to at most ``size`` bytes; 0 lifts the limit. Needs quotas."""
    with _opened(path) as folder:
        flags, most = (_LIMIT_REFERENCED, size) if size else (_LIMIT_REFERENCED, 2**64 - 1)
        fcntl.ioctl(folder, _QGROUP_LIMIT_NUMBER, _QGROUP_LIMIT.pack(0, flags, most, 0, 0, 0))


def referenced(path: Path) -> int:
    """Return the bytes that the subvolume ``path`` refers to. They are counted at a commit, so this makes one."""
    with _opened(path) as folder:
        fcntl.ioctl(folder, _SYNC)
        answer = bytearray(_INO_LOOKUP.pack(0, _SUBVOLUME_ROOT_INODE, b""))
        fcntl.ioctl(folder, _INO_LOOKUP_NUMBER, answer)
        subvolume = _INO_LOOKUP.unpack(answer)[0]
    return int((_qgroups(path) / f"0_{subvolume}" / "referenced").read_text(encoding="ascii"))


def _qgroups(path: Path) -> Path:
    return Path("/sys/fs/btrfs") / str(_fs_uuid(path)) / "qgroups"


def _fs_uuid(path: Path) -> uuid.UUID:
    with _opened(path) as folder:
        answer = bytearray(1024)
        fcntl.ioctl(folder, _FS_INFO, answer)
    return uuid.UUID(bytes=bytes(answer[16:32]))


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield folder
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(folder)

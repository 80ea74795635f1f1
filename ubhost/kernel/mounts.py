"""mount(2) and its newer relatives, called directly: no ``mount`` program, errno instead of text.

A bind mount is made detached (``open_tree``), given its attributes (``mount_setattr``), and only then attached
(``move_mount``): nobody ever sees a read-only mount writable. ``mount(2)`` itself ignores ``MS_RDONLY`` together
with ``MS_BIND``.

Every function raises ``OSError`` with the path concerned. Source: man-pages open_tree(2), mount_setattr(2),
move_mount(2), umount2(2); the numbers are the same on every architecture since Linux 5.12.
"""

import ctypes
import os
from pathlib import Path

from ubhost.mounttable import Attribute as Attribute

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_AT_EMPTY_PATH, _AT_RECURSIVE, _AT_FDCWD = 0x1000, 0x8000, -100
_MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_EMPTY_PATH = 0x4, 0x40
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_SHARED = 1 << 12, 1 << 14, 1 << 18, 1 << 20
_CLONE_NEWNS = 0x20000
_ATIME = 0x70  # the atime choice is a field of several bits: clear it before setting one


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)


def clone(folder: int) -> int:
    """Return a detached mount of the directory or file that descriptor ``folder`` is open on; close it after use."""
    return _syscall(
        f"descriptor {folder}",
        _OPEN_TREE,
        ctypes.c_int(folder),
        b"",
        ctypes.c_uint(_OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_EMPTY_PATH),
    )


def set_attributes(tree: int, attributes: Attribute) -> None:
    """Give a detached mount ``attributes``, and make it private: mounts on one copy must not show on others."""
    clear = (_ATIME if attributes & Attribute.NOATIME else 0) | int(Attribute.NODEV & ~attributes)
    change = _Attributes(int(attributes), clear, _MS_PRIVATE, 0)
    _syscall(
        f"descriptor {tree}",
        _MOUNT_SETATTR,
        ctypes.c_int(tree),
        b"",
        ctypes.c_uint(_AT_EMPTY_PATH),
        ctypes.byref(change),
        ctypes.c_size_t(ctypes.sizeof(change)),
    )


def attach(tree: int, target: int, name: Path) -> None:
    """Attach a detached mount at what descriptor ``target`` (opened with O_PATH) is open on; ``name`` is for errors."""
    _syscall(
        str(name),
        _MOVE_MOUNT,
        ctypes.c_int(tree),
        b"",
        ctypes.c_int(target),
        b"",
        ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH),
    )


def unmount(target: Path, *, lazy: bool = False) -> None:
    """Unmount the topmost mount at ``target``, which is not followed if it is a symbolic link.

    ``lazy`` takes a dead or hung file system out of sight; a living one would stay in use unseen, so do not.
    """
    flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)
    if _libc.umount2(os.fsencode(target), flags) != 0:
        raise _os_error(str(target))


def mount(source: str, target: Path, fstype: str, data: str = "", flags: int = 0) -> None:
    """Mount a file system: ``mount -t fstype -o data source target``."""
    if _libc.mount(source.encode(), os.fsencode(target), fstype.encode(), flags, data.encode() or None) != 0:
        raise _os_error(str(target))


def bind(source: Path, target: Path) -> None:
    """Show ``source``, with what is mounted below it, at ``target``, too."""
    if _libc.mount(os.fsencode(source), os.fsencode(target), None, _MS_BIND | _MS_REC, None) != 0:
        raise _os_error(str(target))


def make_shared(target: Path) -> None:
    """Let mounts below ``target`` appear in the namespaces that share it, as kubelet's directories must."""
    if _libc.mount(None, os.fsencode(target), None, _MS_SHARED, None) != 0:
        raise _os_error(str(target))


def enter_new_namespace() -> None:
    """Give this process mounts of its own: no change of them shows outside, nor one made there inside."""
    if _libc.unshare(_CLONE_NEWNS) != 0 or _libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
        raise _os_error("mount namespace")


def _syscall(name: str, number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise _os_error(name)
    return result


def _os_error(name: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), name)

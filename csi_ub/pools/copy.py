"""Copy and remove trees of files as they are: owners, modes, times, attributes, links and holes.

Where the file system can share blocks (btrfs, xfs), a file is cloned instead of copied, in no time and no space.
"""

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ubhost.errors import Exhausted, HostFault
from ubhost.kernel import flush

_FICLONE = 0x40049409
_CHUNK = 16 << 20  # bytes
_BLOCK = 1 << 20  # bytes
_SKIPPED = frozenset({".glusterfs"})  # an engine's own index of the original
_LABEL = "security.selinux"  # says what the place is, not what lies there: a network file system has its own
_APART = (errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL)  # two file systems that hand each other nothing


def remove_tree(folder: Path) -> None:
    """Remove ``folder`` with all it holds; it may be gone in part or whole. Symbolic links are not followed.

    Raises:
        HostFault: something in it cannot be removed.
    """
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise HostFault(f"cannot remove {folder}: {error.strerror} ({error.filename})") from error


def copy_tree(source: Path, target: Path) -> None:
    """Make ``target``, empty or not there, a copy of the folder ``source``, which nobody may change meanwhile.

    It is on the disk then: whoever is told that a copy exists may delete the original.

    Raises:
        Exhausted: the disk is full.
        HostFault: something cannot be copied.
    """
    linked: dict[int, Path] = {}
    try:
        target.mkdir(exist_ok=True)
        folders = [(source, target)]
        while folders:
            here, there = folders.pop()
            with os.scandir(here) as entries:
                for entry in sorted(entries, key=lambda each: each.name):
                    if entry.name in _SKIPPED and here == source:
                        continue
                    copy = there / entry.name
                    if entry.is_dir(follow_symlinks=False):
                        copy.mkdir()
                        folders.append((Path(entry.path), copy))
                    else:
                        _copy_entry(Path(entry.path), copy, linked)
        for folder, copy in _folders_bottom_up(source, target):
            _copy_metadata(folder, copy)
        flush.file_system(target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Exhausted(f"no space to copy {source} to {target}") from error
        raise HostFault(f"cannot copy {source} to {target}: {error.strerror} ({error.filename})") from error


def _copy_entry(source: Path, copy: Path, linked: dict[int, Path]) -> None:
    state = source.lstat()
    if state.st_nlink > 1 and state.st_ino in linked:
        copy.hardlink_to(linked[state.st_ino])
        return
    linked[state.st_ino] = copy
    if stat.S_ISLNK(state.st_mode):
        copy.symlink_to(source.readlink())
    elif stat.S_ISREG(state.st_mode):
        _copy_file(source, copy)
    elif stat.S_ISFIFO(state.st_mode):
        os.mkfifo(copy)
    else:
        return  # sockets and devices belong to whoever made them, not to the data
    _copy_metadata(source, copy)


def _copy_file(source: Path, copy: Path) -> None:
    with source.open("rb") as old, copy.open("xb") as new:
        with suppress(OSError):  # no shared blocks here: copy
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
            return
        os.ftruncate(new.fileno(), os.fstat(old.fileno()).st_size)
        for start, end in _extents(old.fileno()):
            _copy_extent(old.fileno(), new.fileno(), start, end)


def _copy_extent(old: int, new: int, start: int, end: int) -> None:
    try:
        while start < end and (count := os.copy_file_range(old, new, min(_CHUNK, end - start), start, start)):
            start += count
    except OSError as error:
        if error.errno not in _APART:
            raise
    while start < end and (block := os.pread(old, min(_BLOCK, end - start), start)):
        start += os.pwrite(new, block, start)


def _extents(file: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a file that are not holes."""
    end = 0
    while True:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole up to the end
            return
        end = os.lseek(file, start, os.SEEK_HOLE)
        yield start, end


def _copy_metadata(source: Path, copy: Path) -> None:
    state = source.lstat()
    os.chown(copy, state.st_uid, state.st_gid, follow_symlinks=False)
    for name in os.listxattr(source, follow_symlinks=False):
        if not name.startswith("trusted."):
            _copy_attribute(source, copy, name)
    if not stat.S_ISLNK(state.st_mode):
        copy.chmod(stat.S_IMODE(state.st_mode))
    os.utime(copy, ns=(state.st_atime_ns, state.st_mtime_ns), follow_symlinks=False)


def _copy_attribute(source: Path, copy: Path, name: str) -> None:
    try:
        os.setxattr(copy, name, os.getxattr(source, name, follow_symlinks=False), follow_symlinks=False)
    except OSError as error:
        if name != _LABEL or error.errno != errno.EOPNOTSUPP:
            raise


def _folders_bottom_up(source: Path, target: Path) -> Iterator[tuple[Path, Path]]:
    for here, _, _ in os.walk(source, topdown=False):
        copy = target / Path(here).relative_to(source)
        if copy.is_dir():
            yield Path(here), copy

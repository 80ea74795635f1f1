"""The files of a host below a root of our own: what an entry of the tree is, and how it is made.

What entries a UB host has is said, purely, in ``ubsim.sysfs`` and ``ubsim.memory_tree``.

Device nodes are character devices where we may make them (all of them /dev/null: there is no driver behind), and
plain files where we may not, as in a user namespace. Shared memory is a sparse plain file, so that it can be mapped.
"""

import contextlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ubhost.errors import HostFault

NULL = os.makedev(1, 3)


@dataclass(frozen=True, slots=True)
class File:
    """``is_fixed`` content never changes, so equal ones may be one file with many names."""

    path: str
    content: str
    mode: int = 0o444
    is_fixed: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    path: str
    target: str  # another path of the tree


@dataclass(frozen=True, slots=True)
class CharDevice:
    path: str
    mode: int


@dataclass(frozen=True, slots=True)
class Sparse:
    """A file of ``size`` bytes that takes no space until it is written."""

    path: str
    size: int
    mode: int


Entry = File | Link | CharDevice | Sparse


def write(root: Path, tree: Iterable[Entry]) -> None:
    """Make every entry below ``root``; what is there already is replaced.

    Raises:
        HostFault: the file system refused; the path is named.
    """
    made: set[str] = set()
    fixed: dict[tuple[str, int], str] = {}
    for entry in tree:
        path = f"{root}/{entry.path}"
        folder = path.rpartition("/")[0]
        try:
            if folder not in made:
                os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - a Path each for 100,000 files costs seconds
                made.add(folder)
            if (
                isinstance(entry, File)
                and entry.is_fixed
                and _is_linked(path, fixed.setdefault((entry.content, entry.mode), path))
            ):
                continue
            _make(str(root), path, entry)
        except OSError as error:
            raise HostFault(f"cannot make {path}: {error.strerror or error}") from error


def follow(root: Path, before: Iterable[Entry], after: Iterable[Entry]) -> None:
    """Bring what ``write`` made of ``before`` to ``after``; what both have is not touched, whatever it reads by now.

    Raises:
        HostFault: the file system refused; the path is named.
    """
    old, new = {entry.path: entry for entry in before}, {entry.path: entry for entry in after}
    for path in old.keys() - new.keys():
        _remove(root, root / path)
    fresh = []
    for path, entry in new.items():
        known = old.get(path)
        if known == entry:
            continue
        if isinstance(known, File) and isinstance(entry, File) and not known.is_fixed:
            poke(root / path, entry.content)
        else:
            if not (known is None and isinstance(entry, Sparse)):  # its maker may have laid it there: shared memory
                _clear(str(root / path))
            fresh.append(entry)
    write(root, fresh)


def _remove(root: Path, path: Path) -> None:
    """Remove a file, and the folders that are empty without it."""
    path.unlink(missing_ok=True)
    for folder in path.parents:
        if folder == root or (folder.exists() and next(folder.iterdir(), None) is not None):
            return
        if folder.exists():
            folder.rmdir()


def _is_linked(path: str, same: str) -> bool:
    """Give the file ``same`` another name, which takes a third of the time and no space."""
    if path == same:
        return False
    try:
        os.link(same, path)
    except FileExistsError:
        os.unlink(path)  # noqa: PTH108
        os.link(same, path)
    return True


def _make(root: str, path: str, entry: Entry) -> None:
    match entry:
        case File(content=content, mode=mode):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
            try:
                os.write(fd, content.encode())
            finally:
                os.close(fd)
        case Link(target=target):
            _clear(path)
            os.symlink(os.path.relpath(f"{root}/{target}", path.rpartition("/")[0]), path)  # noqa: PTH211
        case CharDevice(mode=mode):
            _clear(path)
            try:
                os.mknod(path, stat.S_IFCHR, NULL)
            except PermissionError:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC))
            os.chmod(path, mode)  # noqa: PTH101
        case Sparse(size=size, mode=mode):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
            try:
                os.ftruncate(fd, size)
            finally:
                os.close(fd)


def _clear(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108


def poke(path: Path, content: str) -> None:
    """Change what an attribute reads, in one write and in place: a reader sees the old line or the new one.

    Raises:
        HostFault: the file system refused.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            line = content.encode()
            os.pwrite(fd, line, 0)
            if size > len(line):
                os.ftruncate(fd, len(line))
        finally:
            os.close(fd)
    except OSError as error:
        raise HostFault(f"cannot write {path}: {error.strerror or error}") from error

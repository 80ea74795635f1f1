"""Looks at mount points and carries out mount steps: the driver's only hands on the kernel's mount table."""

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from csi_ub.plan import Entry, Seen
from csi_ub.reasons import InUse
from csi_ub.steps import Bind, File, Folder, MountStep
from ubhost.errors import HostFault, InvalidRequest
from ubhost.kernel import mountinfo, mounts

_NAME_MAX, _PATH_MAX = 255, 4096  # bytes, the latter with a final NUL; linux/limits.h


def canonical(path: str) -> Path:
    """Return ``path`` as the mount table spells it: its parent resolved, its last part taken as it is.

    Raises:
        InvalidRequest: it is not absolute, ends in a part that names no entry of its own, or is too long for Linux.
    """
    if not path.startswith("/"):
        raise InvalidRequest(f"path {path!r} is not absolute")
    name = Path(path).name
    if name in ("", ".", "..") or "\0" in path:
        raise InvalidRequest(f"path {path!r} names no mount point")
    found = Path(os.path.realpath(Path(path).parent)) / name
    if (longest := max(len(os.fsencode(part)) for part in found.parts)) > _NAME_MAX:
        raise InvalidRequest(f"path {path[:60]!r}... has a part of {longest} bytes, more than the {_NAME_MAX} of Linux")
    if (size := len(os.fsencode(found))) >= _PATH_MAX:
        raise InvalidRequest(f"path {path[:60]!r}... has {size} bytes, more than the {_PATH_MAX - 1} of Linux")
    return found


def see(target: Path, table: tuple[mountinfo.Mount, ...]) -> Seen:
    """Return what is at ``target``. A mounted file system is not touched: it may be dead or hung."""
    mounted = mountinfo.at(table, target)
    if mounted:
        return Seen(Entry.FOLDER, mounted)
    if target.is_symlink():
        return Seen(Entry.OTHER)
    if target.is_dir():
        return Seen(Entry.FOLDER)
    if target.is_file() and target.stat().st_size == 0:  # any other is somebody's
        return Seen(Entry.FILE)
    return Seen(Entry.OTHER if target.exists() else Entry.MISSING)


@dataclass(frozen=True, slots=True)
class Mounter:
    """Does mount steps. ``source`` is a descriptor of the folder to bind; unmounting needs none."""

    source: int | None = None

    def do(self, step: MountStep) -> None:
        """Make one change.

        Raises:
            InUse: a mount point is busy, or its folder is not empty.
            HostFault: the kernel refused.
        """
        try:
            match step:
                case Folder(path, exists):
                    _make(Path(path)) if exists else _remove(Path(path))
                case File(path, exists):
                    _make_file(Path(path)) if exists else _remove_file(Path(path))
                case Bind(target, _, attributes, attached, lazy):
                    self._bind(Path(target), attributes) if attached else mounts.unmount(Path(target), lazy=lazy)
        except OSError as error:
            raise _reason(step, error) from error

    def _bind(self, target: Path, attributes: mounts.Attribute) -> None:
        assert self.source is not None, "a mount has a source"
        point = os.open(target, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            tree = mounts.clone(self.source)
            try:
                mounts.set_attributes(tree, attributes)
                mounts.attach(tree, point, target)
            finally:
                os.close(tree)
        finally:
            os.close(point)


def _make(folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o750)


def _remove(folder: Path) -> None:
    with suppress(FileNotFoundError):
        folder.rmdir()  # never recursively: a mount that we do not see would lose its data


def _make_file(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    file.touch(mode=0o600)


def _remove_file(file: Path) -> None:
    with suppress(FileNotFoundError):
        if file.lstat().st_size:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(file))
        file.unlink()


def _reason(step: MountStep, error: OSError) -> HostFault | InUse:
    name = step.target if isinstance(step, Bind) else step.path
    if error.errno == errno.EBUSY:
        return InUse(f"{name} is in use: something has files open on it")
    if error.errno == errno.ENOTEMPTY:
        return InUse(f"{name} is not a mount and not empty: its files are not the volume's, so they stay")
    return HostFault(f"cannot change {name}: {error.strerror or error}")

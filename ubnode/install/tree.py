"""Changes of the file tree, each whole or not at all, also on a full disk: what is new is made aside and renamed in.

What was there before keeps a name beside its place: going back needs no space. ``clear`` removes all such names, also
those that a kill has left.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

ASIDE = ".ub-node-aside-"


def set_link(there: Path, target: str | None) -> None:
    before = _before(there)
    if target is None:
        _keep_by_name(there)
    elif before.is_symlink() and str(before.readlink()) == target:
        before.replace(there)
    else:
        coming = _coming(there)
        coming.unlink(missing_ok=True)
        coming.symlink_to(target)
        _replace(there, coming)


def set_file(there: Path, content: str | None, mode: int) -> None:
    """Give a file this content; one that is there keeps its mode."""
    before = _before(there)
    if content is None:
        _keep_by_name(there)
    elif before.is_file() and before.read_text(encoding="utf-8", errors="surrogateescape") == content:
        before.replace(there)
    else:
        with suppress(FileNotFoundError):
            mode = there.stat().st_mode & 0o7777
        coming = _coming(there)
        coming.unlink(missing_ok=True)
        try:
            _write(coming, content, mode)
            _replace(there, coming)
        except OSError:
            coming.unlink(missing_ok=True)
            raise


def place_folder(source: Path, there: Path) -> None:
    """Copy a folder to where there is none."""
    placing = there.with_name(f"{ASIDE}{there.name}.new")
    remove(placing)
    try:
        shutil.copytree(source, placing, symlinks=True)
        os.utime(placing)  # releases are told apart by age
        _flush(placing)  # a power cut after the rename must not leave empty files
        placing.rename(there)
    except OSError as error:
        remove(placing)  # it may be what fills the disk
        if isinstance(error, shutil.Error):  # one for each file
            raise OSError(error.args[0][0][2]) from error
        raise


def aside(there: Path) -> Path:
    return there.with_name(ASIDE + there.name)


def put_aside(there: Path) -> None:
    if os.path.lexists(there):
        remove(aside(there))
        there.rename(aside(there))


def put_back(there: Path) -> bool:
    """Take back ``put_aside``; return whether there was anything aside."""
    if not os.path.lexists(aside(there)):
        return False
    aside(there).rename(there)
    return True


def remove_if_empty(there: Path) -> None:
    """What is aside in the folder does not count, and goes with it."""
    if there.is_dir() and not there.is_symlink() and all(entry.name.startswith(ASIDE) for entry in there.iterdir()):
        shutil.rmtree(there)


def remove(there: Path) -> None:
    if there.is_dir() and not there.is_symlink():
        shutil.rmtree(there)
    else:
        there.unlink(missing_ok=True)


def clear(folder: Path) -> None:
    """Remove for good what was put aside in a folder."""
    for entry in folder.glob(f"{ASIDE}*"):
        remove(entry)


def clear_around(there: Path) -> None:
    """Remove what was to take this place, and what had it before."""
    for left in (_coming(there), _before(there)):
        if os.path.lexists(left):  # a read-only folder refuses to unlink even what is not there
            left.unlink()


def _coming(there: Path) -> Path:
    return there.with_name(f".{there.name}.ub-node")  # a dot file is no CNI plugin and no unit


def _before(there: Path) -> Path:
    return there.with_name(f"{ASIDE}{there.name}~")


def _keep_by_name(there: Path) -> None:
    if os.path.lexists(there):
        there.replace(_before(there))


def _replace(there: Path, coming: Path) -> None:
    """The name changes hands at once; what had it keeps another one."""
    before = _before(there)
    before.unlink(missing_ok=True)
    if os.path.lexists(there):
        os.link(there, before, follow_symlinks=False)
    coming.replace(there)


def _write(path: Path, content: str, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as out:
        os.fchmod(fd, mode)
        out.write(content)
        out.flush()
        os.fsync(fd)


def _flush(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        if not path.is_symlink():
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

"""Changes of the file tree, each whole or not at all, also on a full disk: what is new is made aside and renamed in.

What a kill leaves aside has a name of ours beside the place that it was for; ``clear`` removes it.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

ASIDE = ".ub-node-aside-"


def set_link(there: Path, target: str | None) -> None:
    if target is None:
        there.unlink(missing_ok=True)
        return
    coming = _coming(there)
    coming.unlink(missing_ok=True)
    coming.symlink_to(target)
    coming.replace(there)


def set_file(there: Path, content: str | None, mode: int) -> None:
    """Give a file this content; one that is there keeps its mode."""
    if content is None:
        there.unlink(missing_ok=True)
        return
    with suppress(FileNotFoundError):
        mode = there.stat().st_mode & 0o7777
    coming = _coming(there)
    coming.unlink(missing_ok=True)
    try:
        _write(coming, content, mode)
        coming.replace(there)
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
    except OSError:
        remove(placing)  # it may be what fills the disk
        raise


def put_aside(there: Path) -> None:
    aside = there.with_name(ASIDE + there.name)
    if os.path.lexists(there):
        remove(aside)
        there.rename(aside)


def put_back(there: Path) -> bool:
    """Take back ``put_aside``; return whether there was anything aside."""
    aside = there.with_name(ASIDE + there.name)
    if not os.path.lexists(aside):
        return False
    aside.rename(there)
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
    for aside in folder.glob(f"{ASIDE}*"):
        remove(aside)


def clear_coming(there: Path) -> None:
    """Remove what was to take this place, and was killed before it did."""
    _coming(there).unlink(missing_ok=True)


def _coming(there: Path) -> Path:
    return there.with_name(f".{there.name}.ub-node")  # a dot file is no CNI plugin and no unit


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

"""Files in folders that another program watches: the runtime's CNI configuration, CDI, node features.

Such a program reads the folder whenever something in it changes, so a file must appear there whole, and nothing else
may appear at all: no temporary file, and no rewrite of what is the same already. The new content is written beside
the folder and renamed into it. Where that is another file system (only the folder itself is mounted into our
container), it is written in a hidden folder inside: those programs neither watch nor read folders in folders.

Runtimes that use fsnotify overlook a file that is renamed into the folder from elsewhere: it comes as *create*, and
containerd and the CDI library wait for *write*, *rename* or *remove*. So the last byte is written once more where the
file lies now, which changes nothing that anybody could read.

One writer at a time, by a lock on the folder; so a temporary file that a killed writer left is simply written again.
A writer that was killed before it had told anybody leaves the sticky bit on the file, so that the next one tells.

Source: reference/cni.md H47 and section 1.8; containerd internal/cri/server/cni_conf_syncer.go;
container-device-interface pkg/cdi/cache.go; fsnotify backend_inotify.go.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ubhost.errors import HostFault

HIDDEN = ".ub-node"
UNTOLD = stat.S_ISVTX
_TRY_INSIDE = (errno.EXDEV, errno.EROFS, errno.EACCES, errno.EPERM)


def put(path: Path, content: bytes, *, mode: int = 0o644, stage: Path | None = None) -> bool:
    """Make ``path`` hold ``content``, which is not empty, with permissions ``mode``; return whether it did not already.

    ``stage`` is a folder that nobody watches; by default the one above that of ``path``.

    Raises:
        HostFault: the folder is missing, read-only or full; ``path`` is as it was.
    """
    try:
        with _locked(path.parent):
            if holds(path, content, mode):
                return False
            try:
                _replace(path, content, mode, stage or path.parent.parent)
            except OSError as error:
                if error.errno not in _TRY_INSIDE:
                    raise
                _replace_from_inside(path, content, mode)
            return True
    except OSError as error:
        raise HostFault(f"cannot write {path}: {error.strerror or error}") from error


def remove(path: Path) -> bool:
    """Remove ``path``, and the hidden folder if there is one; return whether the file was there.

    Raises:
        HostFault: it cannot be removed.
    """
    with contextlib.suppress(OSError):
        (path.parent / HIDDEN).rmdir()
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise HostFault(f"cannot remove {path}: {error.strerror or error}") from error
    return True


def make(folder: Path, *, mode: int = 0o755) -> None:
    """Make ``folder`` and those above it, if they are missing.

    Raises:
        HostFault: that is not possible.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=mode)
    except OSError as error:
        raise HostFault(f"cannot make {folder}: {error.strerror or error}") from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
        os.fsync(fd)  # the rename survives a power cut
    finally:
        os.close(fd)


def holds(path: Path, content: bytes, mode: int) -> bool:
    """Whether ``path`` is a plain file with just this content and these permissions."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(fd, "rb") as file:
        return os.fstat(fd).st_mode & 0o7777 == mode and file.read(len(content) + 1) == content


def _replace_from_inside(path: Path, content: bytes, mode: int) -> None:
    inside = path.parent / HIDDEN
    inside.mkdir(mode=0o700, exist_ok=True)
    _replace(path, content, mode, inside)


def _replace(path: Path, content: bytes, mode: int, stage: Path) -> None:
    temporary = stage / f"{HIDDEN}.{path.name}.tmp"
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(content)
            out.flush()
            os.fchmod(fd, mode | UNTOLD)
            os.fsync(fd)
            temporary.replace(path)
            os.pwrite(fd, content[-1:], len(content) - 1)
            os.fchmod(fd, mode)
            os.fsync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise

"""Versioned JSON files that are never seen half-written.

A write goes to a temporary file in the same folder, is flushed to disk, and is renamed over the old one; then
the folder is flushed, so that the rename survives a power cut. A file that cannot be read back (torn by another
program, wrong version) is reported as ``Damaged``; the caller decides whether to rebuild or to refuse.
"""

import errno
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

from ubhost.errors import HostFault

_FILE_IS_BAD = (errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.EIO, errno.EUCLEAN, errno.EBADMSG)


class Damaged(HostFault):
    """A state file exists, but what it says cannot be used."""


def write(path: Path, version: int, content: dict[str, Any], *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace ``path`` by ``content`` wholly, or leave it as it was.

    What describes kernel state that a power cut ends too need not be ``durable``: then nothing is flushed to disk.

    Raises:
        HostFault: the folder is missing, read-only or full; the old file is untouched.
    """
    text = json.dumps({"version": version, **content}, sort_keys=True) + "\n"  # indented it takes ten times as long
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        with os.fdopen(fd, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            if durable:
                os.fsync(out.fileno())
        temporary.replace(path)
        if durable:
            _flush_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise HostFault(f"cannot write {path}: {error.strerror or error}") from error


def read(path: Path, version: int) -> dict[str, Any] | None:
    """Return the content of ``path``, or ``None`` if there is no such file.

    Raises:
        Damaged: it is not a file (a folder, a link, a FIFO), broken on its disk, not JSON, not an object, or of another
            version.
        HostFault: it cannot be read by us, or not now.
    """
    try:
        with open(path, "rb", opener=_open_regular) as file:
            text = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = Damaged if error.errno in _FILE_IS_BAD else HostFault
        raise reason(f"cannot read {path}: {error.strerror or error}") from error
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise Damaged(f"{path} holds {type(content).__name__}, not an object")
    if content.pop("version", None) != version:
        raise Damaged(f"{path} is not of version {version}")
    return content


def _open_regular(path: str, flags: int) -> int:
    """Open a file, and nothing else: a FIFO would hold us up, and a link leads to what somebody else wrote."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise Damaged(f"{path} is not a file")


def _flush_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

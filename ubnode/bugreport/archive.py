"""A report as one archive, readable by its owner only, that begins with a list of what it holds."""

import gzip
import io
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from ubhost.errors import InvalidRequest
from ubnode.bugreport.gather import Left, Taken

LIST = "LIST.txt"


def contents(pieces: Sequence[Taken | Left]) -> str:
    """Return the list: each piece with its size, then what was left out and why."""
    taken = [piece for piece in pieces if isinstance(piece, Taken)]
    lines = [f"{len(piece.content):>9} {piece.path}{_note(piece)}" for piece in taken]
    lines += [f"{'-':>9} {piece.path} (left out: {piece.why})" for piece in pieces if isinstance(piece, Left)]
    return "\n".join(lines) + "\n"


def write(path: Path, pieces: Sequence[Taken | Left], seconds: int) -> int:
    """Write the archive, dated ``seconds`` after 1970; return its size in bytes.

    Raises:
        InvalidRequest: something is there already, or the folder cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            _fill(file, path.name.removesuffix(".tar.gz"), pieces, seconds)
            return file.tell()
    except BaseException:  # the half of a report would be taken for a whole one
        path.unlink()
        raise


def _fill(file: BinaryIO, folder: str, pieces: Sequence[Taken | Left], seconds: int) -> None:
    with (
        gzip.GzipFile(fileobj=file, mode="wb", mtime=seconds, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        _add(archive, f"{folder}/{LIST}", contents(pieces).encode(), seconds)
        for piece in pieces:
            if isinstance(piece, Taken):
                _add(archive, f"{folder}/{piece.path}", piece.content, seconds)


def _add(archive: tarfile.TarFile, name: str, content: bytes, seconds: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), 0o600, seconds
    archive.addfile(member, io.BytesIO(content))


def _note(piece: Taken) -> str:
    return f" ({piece.note})" if piece.note else ""

"""What a version of a model consists of. Its id is the SHA-256 of that list, so equal content is one version."""

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from ubhost.errors import HostFault, InvalidRequest

CHUNK = 1 << 20  # bytes; what is new is found in pieces of this size
_THREADS = 4  # hashing leaves the interpreter alone


@dataclass(frozen=True, slots=True)
class File:
    """One regular file: ``path`` relative to the version, ``chunks`` the SHA-256 of each piece of ``CHUNK`` bytes."""

    path: str
    size: int
    chunks: tuple[str, ...]
    is_executable: bool = False


@dataclass(frozen=True, slots=True)
class Manifest:
    """All files of a version, sorted by path."""

    files: tuple[File, ...]

    @property
    def id(self) -> str:
        return hashlib.sha256(json.dumps(msgspec.to_builtins(self), sort_keys=True).encode()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def read(folder: Path, progress: Callable[[int], None] = lambda _: None) -> Manifest:
    """Return the manifest of the files below ``folder``; ``progress`` is told the bytes read.

    Symbolic links are followed to their files (as model hubs lay their caches out), but never to folders.

    Raises:
        InvalidRequest: there is no file, or something is neither file nor folder.
        HostFault: something cannot be read.
    """
    try:
        paths = sorted(_files(folder))
    except OSError as error:
        raise HostFault(f"cannot read {folder}: {error.strerror} ({error.filename})") from error
    if not paths:
        raise InvalidRequest(f"{folder} holds no file")
    with ThreadPoolExecutor(_THREADS) as pool:
        return Manifest(tuple(pool.map(lambda path: _file(folder, path, progress), paths)))


def chunk_at(file: File, index: int) -> tuple[int, int]:
    """Return the offset and the size of chunk number ``index``."""
    return index * CHUNK, min(CHUNK, file.size - index * CHUNK)


def is_safe(path: str) -> bool:
    """Whether ``path`` names something inside a version and nothing else."""
    pure = PurePosixPath(path)
    return bool(path) and not pure.is_absolute() and ".." not in pure.parts and "\0" not in path


def _files(folder: Path) -> Iterator[str]:
    for here, folders, names in os.walk(folder, onerror=_raise):
        for name in (*names, *(each for each in folders if (Path(here) / each).is_symlink())):
            path = Path(here) / name
            if not stat.S_ISREG(path.stat().st_mode):
                raise InvalidRequest(f"{path} is not a regular file")
            yield str(path.relative_to(folder))


def _file(folder: Path, path: str, progress: Callable[[int], None]) -> File:
    chunks = []
    try:
        with (folder / path).open("rb", buffering=0) as file:
            while piece := file.read(CHUNK):
                chunks.append(hashlib.sha256(piece).hexdigest())
                progress(len(piece))
            state = os.fstat(file.fileno())
    except OSError as error:
        raise HostFault(f"cannot read {folder / path}: {error.strerror}") from error
    return File(path, state.st_size, tuple(chunks), bool(state.st_mode & stat.S_IXUSR))


def _raise(error: OSError) -> None:
    raise error

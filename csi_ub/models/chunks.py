"""Pieces of a version's files: read from where they are, written to where they belong, checked by their hashes."""

import errno
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from ubhost.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Place:
    """Where a chunk belongs: ``size`` bytes at ``offset`` of the open file ``out``."""

    out: int
    offset: int
    size: int

    def holds(self, wanted: str) -> bool:
        return hashlib.sha256(os.pread(self.out, self.size, self.offset)).hexdigest() == wanted

    def take(self, known: tuple[Path, int] | None, wanted: str) -> bool:
        """Copy the chunk from an earlier version, which may be sharing blocks; return whether it is there now."""
        if known is None:
            return False
        try:
            with known[0].open("rb", buffering=0) as old:
                done = 0
                while done < self.size:
                    place = (known[1] + done, self.offset + done)
                    copied = os.copy_file_range(old.fileno(), self.out, self.size - done, *place)
                    if copied == 0:
                        return False
                    done += copied
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            return False
        return self.holds(wanted)

    def write(self, piece: bytes, wanted: str, source: Path) -> None:
        if hashlib.sha256(piece).hexdigest() != wanted:
            raise InvalidRequest(f"{source} changed while it was pushed")
        done = 0
        while done < len(piece):
            done += os.pwrite(self.out, piece[done:], self.offset + done)


def read_chunk(path: Path, offset: int, size: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), size, offset)

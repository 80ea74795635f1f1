"""The operations that differ between kinds of pools."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of a volume; ``total`` is its quota, or the size of the file system where there is none."""

    used: int
    total: int

    @property
    def available(self) -> int:
        return max(0, self.total - self.used)


class Space(Protocol):
    """Makes and removes the ``share`` of a volume or a snapshot: the folder that holds its bytes.

    ``has_quota``: volumes cannot grow over their size. ``is_atomic``: a copy shows one moment, even while somebody
    writes. Every method may raise ``HostFault``.
    """

    has_quota: bool
    is_atomic: bool

    def check(self, pool: Path) -> None:
        """Raise ``Unsupported`` if the file system of ``pool`` cannot do what this kind of pool needs."""

    def make(self, share: Path, size: int) -> None:
        """Make an empty ``share`` for at most ``size`` bytes (0: no limit)."""

    def copy(self, source: Path, share: Path, size: int) -> None:
        """Make ``share`` hold what ``source`` holds, for at most ``size`` bytes (0: no limit).

        Raises:
            Exhausted: no space for the copy.
        """

    def resize(self, share: Path, size: int) -> None:
        """Let ``share`` grow to ``size`` bytes."""

    def usage(self, share: Path, size: int) -> Usage:
        """Return how much of ``share``, made for ``size`` bytes, is used."""

    def available(self, pool: Path) -> int:
        """Return the bytes that new volumes of ``pool`` may have in all; never negative."""

    def remove(self, share: Path) -> None:
        """Remove ``share`` with all it holds; it may be gone in part or whole."""

"""The operations that differ between kinds of pools."""

from pathlib import Path
from typing import Protocol


class Space(Protocol):
    """Makes and removes the folder that holds a volume's bytes. Every method may raise ``HostFault``."""

    has_quota: bool

    def make(self, data: Path, size: int) -> None:
        """Make the empty folder ``data`` for at most ``size`` bytes (0: no limit)."""

    def remove(self, data: Path) -> None:
        """Remove ``data`` with all it holds; it may be gone in part or whole."""

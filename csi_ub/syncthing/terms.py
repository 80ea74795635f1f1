"""What one node must remember of a shared volume over a restart of its driver: ``terms.json`` in its copy.

The file does not travel: each node writes its own, from what the volume's record or context says.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from csi_ub.models.switching import SwitchPolicy
from ubhost import statefile

_VERSION = 1
_NAME = "terms.json"


@dataclass(frozen=True, slots=True)
class Terms:
    """The promise of a volume: ``max_staleness_s`` in seconds, ``owner`` the node that has the volume's record."""

    owner: str
    max_staleness_s: float
    is_model: bool = False
    switch_policy: SwitchPolicy = SwitchPolicy.ALL_READY


def write(share: Path, terms: Terms) -> None:
    statefile.write(share / _NAME, _VERSION, msgspec.to_builtins(terms))


def read(share: Path) -> Terms | None:
    """Return the terms of a copy; ``None`` if it is not shared (any more), or what is written cannot be understood."""
    with suppress(statefile.Damaged, msgspec.ValidationError):
        content = statefile.read(share / _NAME, _VERSION)
        if content is not None:
            return msgspec.convert(content, Terms, strict=False)
    return None

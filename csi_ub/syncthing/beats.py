"""Beats: what each node that uses an eventual volume writes into it every second, for the others to find.

A beat that is old here is a link that is slow or cut: that is how staleness is measured, between each pair of nodes.
Of a model it also tells which versions the node has whole, and which one is in force there. Times are the writer's, so
the clocks of the nodes must agree, as a cluster's do.
"""

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from csi_ub.model import owner_tag


@dataclass(frozen=True, slots=True)
class Beat:
    """The last word of ``node``, at ``time`` (seconds since 1970); ``whole``, ``current``: versions of a model."""

    node: str
    time: float
    whole: frozenset[str] = frozenset()
    current: str | None = None

    @property
    def age(self) -> float:
        """Seconds since it was written; never negative, though clocks differ a little."""
        return max(0.0, time.time() - self.time)


def write(share: Path, node: str, whole: frozenset[str] = frozenset(), current: str | None = None) -> None:
    """Replace the beat of ``node``."""
    path, temporary = share / "beats" / owner_tag(node), share / ".beat"
    content = {"node": node, "time": time.time(), "whole": sorted(whole), "current": current}
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(path)


def read(share: Path) -> tuple[Beat, ...]:
    """Return the last beat of every node, as far as it has come here."""
    found = []
    for path in sorted((share / "beats").glob("[0-9a-f]*")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            told = json.loads(path.read_text(encoding="utf-8"))
            whole, current = frozenset(map(str, told.get("whole", ()))), told.get("current")
            found.append(Beat(str(told["node"]), float(told["time"]), whole, current))
    return tuple(found)


def forget(share: Path, node: str) -> None:
    """Remove the beat of a node that uses the volume no longer."""
    (share / "beats" / owner_tag(node)).unlink(missing_ok=True)


def lags(share: Path, node: str) -> dict[str, float]:
    """Return for each node but ``node`` how many seconds old its last beat is here."""
    return {beat.node: beat.age for beat in read(share) if beat.node != node}

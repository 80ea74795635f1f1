"""Conflict copies: what Syncthing keeps of the loser when two nodes changed one file at once.

Both edits are somebody's data, so neither is ever removed; but somebody has to look at them, so they are counted and
listed. The name tells all: ``report.sync-conflict-20261129-201530-ABCDEFG.txt`` holds what ``report.txt`` was before
the edit of device ABCDEFG… won. (Syncthing's manual says "last modified by" of that device; it is the winner's.)
Source: https://docs.syncthing.net/users/syncing.html, "Conflicting Changes".
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"(.*)\.sync-conflict-(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)-([A-Z2-7]{7})(\.[^.]*)?")
_COUNT = "conflicts"  # a file of this node's copy that does not travel


@dataclass(frozen=True, slots=True)
class Conflict:
    """``copy`` holds what lost against ``original``; ``when`` by the clock of the node that found out.

    Both paths are relative to what pods see; ``winner`` is the beginning of the id of the device whose edit won.
    """

    original: str
    copy: str
    when: str
    winner: str


def parse(path: str) -> Conflict | None:
    """Return what a path says, or ``None`` if it is no conflict copy."""
    folder, _, name = path.rpartition("/")
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    stem, year, month, day, hour, minute, second, device, suffix = found.groups()
    original = f"{folder}/{stem}{suffix or ''}".lstrip("/")
    return Conflict(original, path, f"{year}-{month}-{day} {hour}:{minute}:{second}", device)


def find(data: Path) -> Iterator[Conflict]:
    """Yield the conflict copies below ``data``, in the order of their paths; files may come and go meanwhile."""
    for here, folders, names in os.walk(data):
        folders.sort()
        for name in sorted(names):
            if ".sync-conflict-" in name and (found := parse(str((Path(here) / name).relative_to(data)))):
                yield found


def count(share: Path) -> None:
    """Count those of a volume, for ``counted``: a look through all of its files."""
    (share / _COUNT).write_text(str(sum(1 for _ in find(share / "data"))), encoding="ascii")


def counted(share: Path) -> int | None:
    """Return how many there were at the last count, or ``None`` if there was none."""
    with suppress(OSError, ValueError):
        return int((share / _COUNT).read_text(encoding="ascii"))
    return None

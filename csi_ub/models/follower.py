"""One node's copy of a model: sees that a version has come whole, and puts in force what is due.

``whole/<id>`` in the share, which does not travel, says that every chunk of a version had the right hash here, or what
is wrong with it; so a version is read once only, also over restarts.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from csi_ub.models.store import ModelStore
from csi_ub.models.switching import Standing, SwitchPolicy, due
from ubhost import statefile
from ubhost.errors import HostFault, NotFound

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Follower:
    """The copy of ``node``. ``is_owner``: versions come into being here, whole by construction."""

    store: ModelStore
    node: str
    is_owner: bool
    policy: SwitchPolicy

    def standing(self) -> Standing:
        """Return what this node can tell the others."""
        return Standing(self.node, self._whole(), self.store.current())

    def follow(self, others: Iterable[Standing]) -> str | None:
        """Put in force what is due; return its id if that is a change. May take long: a new version is read once."""
        wanted = self.store.wanted()
        if wanted and not self.is_owner:
            self._inspect(wanted[0])
        me = self.standing()
        version = due(wanted, me, tuple(others), self.policy)
        if version is None or version == me.current:
            return None
        self.store.point_to(version)
        return version

    def fault(self) -> str | None:
        """Return what is wrong with the version that is wanted, so that the former one stays in force."""
        wanted = self.store.wanted()
        return self._mark(wanted[0]).get("fault") if wanted else None

    def _whole(self) -> frozenset[str]:
        there = frozenset(path.name for path in self.store.versions.glob("*"))
        if self.is_owner:
            return there
        marks = frozenset(path.name for path in self._marks.glob("[0-9a-f]*"))
        for gone in marks - there:
            (self._marks / gone).unlink(missing_ok=True)
        return frozenset(id_ for id_ in marks & there if not self._mark(id_).get("fault"))

    def _inspect(self, version: str) -> None:
        """Read a version that has come and is not known yet, or has changed since it was found damaged."""
        stamp = self._stamp(version)
        if stamp is None:
            return
        mark = self._mark(version)
        if mark and (not mark.get("fault") or mark.get("stamp") == stamp):
            return
        fault = None
        try:
            self.store.verify(version)
        except NotFound:
            return  # it went while it was read
        except HostFault as error:
            if self._stamp(version) != stamp:
                return  # it is still on its way
            fault = f"{error}; version {self.store.current() or 'none'} stays in force on node {self.node}"
        self._marks.mkdir(exist_ok=True, mode=0o700)
        statefile.write(self._marks / version, _VERSION, {"fault": fault, "stamp": stamp})

    def _stamp(self, version: str) -> str | None:
        """Return what changes with the files of a version; ``None`` if one is missing or not of its size yet."""
        try:
            files = self.store.manifest(version).files
            states = [(self.store.versions / version / file.path).stat() for file in files]
        except (OSError, NotFound, HostFault):
            return None
        if any(state.st_size != file.size for state, file in zip(states, files, strict=True)):
            return None
        return json.dumps([(state.st_ino, state.st_mtime_ns) for state in states])

    @property
    def _marks(self) -> Path:
        return self.store.share / "whole"

    def _mark(self, version: str) -> dict[str, str | None]:
        with suppress(HostFault):
            return statefile.read(self._marks / version, _VERSION) or {}
        return {}

"""The owner's side of a replicated volume: which other nodes keep its bytes, and that they know what it is now.

The record in the owner's pool is what counts; the nodes are told of it until they answer. A node is written down
before it is asked to keep a replica or to drop one, so a killed driver leaves none behind that nobody knows of.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from csi_ub.model import Site, Volume, owner_tag
from csi_ub.noderecord import Debts
from csi_ub.peers.channel import Peers
from csi_ub.reasons import Unreachable
from csi_ub.replicas import Wanted
from ubhost.errors import UbError, Unsupported

_PATIENCE_S = 12.0  # a brick is started within ten
_ASK_S = 3.0
_FLUSH_S = 60.0  # whoever else writes to that disk is waited for, too
_OTHERS = 2  # with the owner that makes three: two of them outvote the third

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replication:
    """``owed`` are nodes that may keep what they should not."""

    peers: Peers
    owed: Debts
    _told: dict[tuple[str, str], Wanted] = field(default_factory=dict)

    def check(self) -> None:
        """Raise ``Unsupported`` if there are not enough nodes."""
        if len(self.peers.hosts) < _OTHERS:
            raise Unsupported(
                f"replicas: 3 needs {_OTHERS} peers with addresses in the configuration of the driver, "
                f"there are {len(self.peers.hosts)}"
            )

    def place(self, volume: Volume) -> tuple[Site, ...]:
        """Let two other nodes keep replicas of a new volume, whose brick is at ``volume.port``; return who they are.

        Raises:
            Unsupported, Unreachable: there are not two that can.
        """
        self.check()
        found, refusals = list[Site](), list[str]()
        for node in self._candidates(volume.id):
            self._owe(volume.id, node)
            try:
                found.append(Site(node, self._put(volume, node)))
            except UbError as error:
                refusals.append(str(error))
            if len(found) == _OTHERS:
                return tuple(found)
        raise Unreachable(f"volume {volume.name!r} has {1 + len(found)} of 3 replicas: {'; '.join(refusals)}")

    def start_over(self, volume_id: str) -> None:
        """Let all nodes drop what they keep of a new volume whose making was broken off.

        One that does not answer is passed over: it cannot be asked to keep anything either, and drops it later.
        """
        for debt in [debt for _, debt in self.owed.all() if debt["volume"] == volume_id]:
            with suppress(UbError):
                self.peers.ask(debt["node"], "replica.drop", {"volume": volume_id})

    def is_even(self, volume: Volume) -> bool:
        """Whether all nodes that keep replicas answer, and know of nothing that another one misses."""
        states = (self.peers.ask(site.node, "replica.state", {"volume": volume.id}, _ASK_S) for site in volume.sites)
        return all(state["unhealed"] == 0 for state in states)

    def flush(self, volume: Volume) -> None:
        """Return when all other nodes have what they were given on their disks."""
        for site in volume.sites:
            self.peers.ask(site.node, "replica.flush", {"volume": volume.id}, _FLUSH_S)

    def tell(self, volume: Volume, *, at_least: int = 0, patience_s: float = _PATIENCE_S) -> None:
        """Tell the nodes that keep replicas what the volume is now; those that know it are not asked again.

        Raises:
            Unreachable: fewer than ``at_least`` of them know it.
        """
        failures = []
        for site in volume.sites:
            if self._told.get((volume.id, site.node)) != _wanted(volume):
                try:
                    self._put(volume, site.node, patience_s)
                except UbError as error:
                    log.warning("replica not told", extra={"volume_id": volume.id, "error": str(error)})
                    failures.append(str(error))
        if len(volume.sites) - len(failures) < at_least:
            raise Unreachable(f"volume {volume.id}: {'; '.join(failures)}")

    def close(self, volume: Volume) -> None:
        """Let no node reach the replicas any more, before the volume is deleted: a majority closes it.

        Raises:
            Unreachable: no other node answers, so the others may still be at work.
        """
        for site in volume.sites:
            self._owe(volume.id, site.node)
        everybody = tuple(sorted({self.peers.node, *self.peers.hosts, *volume.fenced}))
        self.tell(replace(volume, fenced=everybody), at_least=min(1, len(volume.sites)))

    def refuse_behind(self, volume: Volume) -> None:
        """Raise ``Unreachable`` if the owner's own bytes may not be the newest.

        What the owner missed, both others know of; so one that knows of nothing is enough.
        """
        why = []
        for site in volume.sites:
            try:
                count = self.peers.ask(site.node, "replica.state", {"volume": volume.id}, _ASK_S)["unhealed"]
            except UbError as error:
                why.append(str(error))
                continue
            if count == 0:
                return
            why.append(f"{count} files are being brought up to date after node {site.node} was alone with them")
        if why:
            raise Unreachable(f"volume {volume.id}: {'; '.join(why)}")

    def settle(self, find: Callable[[str], Volume | None]) -> None:
        """Let nodes drop what they keep of volumes that are gone. ``find`` gives the record of a volume, if it is."""
        for key, debt in self.owed.all():
            volume, node = find(debt["volume"]), debt["node"]
            if volume and node not in {site.node for site in volume.sites}:
                if volume.sites or not volume.port:
                    continue  # its CreateVolume goes on, and may come back to this node
            elif volume is None:
                try:
                    self.peers.ask(node, "replica.drop", {"volume": debt["volume"]})
                except UbError as error:
                    log.info("replica not dropped yet", extra={"volume_id": debt["volume"], "error": str(error)})
                    continue
            self.owed.remove(key)
            if volume is None:
                self._told.pop((debt["volume"], node), None)

    def _put(self, volume: Volume, node: str, patience_s: float = _PATIENCE_S) -> int:
        wanted = _wanted(volume)
        answer: dict[str, Any] = self.peers.ask(node, "replica.put", msgspec.to_builtins(wanted), patience_s)
        self._told[volume.id, node] = wanted
        return int(answer["port"])

    def _owe(self, volume_id: str, node: str) -> None:
        self.owed.add(f"{volume_id}@{owner_tag(node)}", {"volume": volume_id, "node": node})

    def _candidates(self, volume_id: str) -> Iterable[str]:
        """Return the other nodes in an order of the volume's own, so that all nodes carry alike."""
        return sorted(self.peers.hosts, key=lambda node: hashlib.sha256(f"{volume_id} {node}".encode()).digest())


def _wanted(volume: Volume) -> Wanted:
    sites = (Site(volume.owner, volume.port), *volume.sites) if volume.sites else ()
    return Wanted(volume.id, volume.owner, volume.pool, volume.quota, sites, volume.fenced)

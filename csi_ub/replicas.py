"""What this node keeps for strong volumes of other nodes: a share, a brick and a healer for each replica.

The owner of a volume says what there is to be, over the channel between drivers; every call may be repeated. Nothing
here is removed unless the owner says so: where its disk was lost, the replicas are the volume.
"""

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from csi_ub import programs
from csi_ub.engines.bricks import Bricks, Share, unhealed
from csi_ub.engines.clients import Healers
from csi_ub.model import Replica, Site, is_own_id, owner_tag, replica_id
from csi_ub.pool import Pool
from csi_ub.pools.base import Usage, doing
from ubhost.errors import Exhausted, InvalidRequest, NotFound, UbError
from ubhost.kernel import flush

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an owner asks to be kept. ``sites``: all who keep it, the owner first; empty as long as it does not know."""

    volume: str
    owner: str
    pool: str
    size: int = 0
    sites: tuple[Site, ...] = ()
    fenced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas in ``pools``. ``put``, ``drop`` and ``state`` answer the owner."""

    pools: tuple[Pool, ...]
    bricks: Bricks
    healers: Healers

    def put(self, content: dict[str, Any]) -> dict[str, Any]:
        """Keep a replica as is wanted; answer with the port of its brick.

        Raises:
            Unsupported: GlusterFS is not installed here.
            Exhausted: no pool has the space.
        """
        programs.find("glusterfsd")
        want = _wanted(content)
        if not is_own_id(want.volume) or not want.volume.startswith(f"ub-{owner_tag(want.owner)}-"):
            raise InvalidRequest(f"{want.volume!r} is not the id of a volume of node {want.owner!r}")
        known = self.find(want.volume)
        pool = known[1] if known else self._pool(want)
        replica = pool.keep(
            Replica(
                id=replica_id(want.volume),
                name=want.volume,
                owner=want.owner,
                pool=pool.name,
                size=want.size,
                sites=want.sites,
                fenced=want.fenced,
                created=int(time.time()),
            )
        )
        return {"port": self._serve(replica, pool).port}

    def drop(self, content: dict[str, Any]) -> dict[str, Any]:
        """Remove a replica with all its bytes; it may be gone."""
        volume_id = _volume(content)
        self.healers.stop(volume_id)
        self.bricks.stop(volume_id)
        if found := self.find(volume_id):
            found[1].replicas.delete(found[0].id, lambda _: None)
        return {}

    def state(self, content: dict[str, Any]) -> dict[str, Any]:
        """Answer with what a replica uses, and how much of the volume is known to differ on another one."""
        found = self.find(_volume(content))
        if found is None:
            raise NotFound(f"volume {content['volume']} has no replica on node {self.bricks.node}")
        used = self.usage(*found)
        return {"used": used.used, "total": used.total, "unhealed": unhealed(found[1].replica_at(found[0]))}

    def flush(self, content: dict[str, Any]) -> dict[str, Any]:
        """Answer when all that a replica was given is on its disk."""
        found = self.find(_volume(content))
        if found is None:
            raise NotFound(f"volume {content['volume']} has no replica on node {self.bricks.node}")
        flush_share(found[1].replica_at(found[0]))
        return {}

    def find(self, volume_id: str) -> tuple[Replica, Pool] | None:
        """Return the replica of a volume and its pool, or ``None``."""
        for pool in self.pools:
            if replica := pool.replicas.find(replica_id(volume_id)):
                return replica, pool
        return None

    def usage(self, replica: Replica, pool: Pool) -> Usage:
        return pool.space.usage(pool.replica_at(replica), replica.size)

    def look_after(self) -> None:
        """Start the daemons of replicas that died."""
        for pool in self.pools:
            for replica in pool.replicas.all():
                try:
                    self._serve(replica, pool)
                except UbError as error:
                    log.warning("replica not reachable", extra={"volume_id": replica.name, "error": str(error)})

    def _serve(self, replica: Replica, pool: Pool) -> Replica:
        share = Share(replica.name, pool.replica_at(replica), replica.fenced, is_replica=True)
        port = self.bricks.ensure(share, replica.port)
        if port != replica.port:
            replica = pool.replicas.update(replica.id, lambda known: replace(known, port=port))
        places = [place for site in replica.sites if (place := self.bricks.place(site))]
        if places and len(places) == len(replica.sites):
            self.healers.ensure(replica.name, places)
        return replica

    def _pool(self, want: Wanted) -> Pool:
        """Return the pool for a new replica: the one of the same name if there is one, else any that has the space."""
        for pool in sorted(self.pools, key=lambda pool: pool.name != want.pool):
            if pool.space.has_mounts and not want.size:
                continue  # a file system has a size, and nobody says how large the replica of a device gets
            if not pool.space.has_quota or pool.space.available(pool.path) >= want.size:
                return pool
        raise Exhausted(f"no pool of node {self.bricks.node} has {want.size} bytes left")


def flush_share(share: Path) -> None:
    """Return when all that was written to a share is on its disk."""
    with doing("flush", share):
        flush.file_system(share)


def _wanted(content: dict[str, Any]) -> Wanted:
    try:
        return msgspec.convert(content, Wanted)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"a replica is asked for in a way that this driver does not know: {error}") from error


def _volume(content: dict[str, Any]) -> str:
    volume_id = content.get("volume")
    if not isinstance(volume_id, str) or not is_own_id(volume_id):
        raise InvalidRequest(f"{volume_id!r} is not the id of a volume")
    return volume_id

"""Which pool holds a volume, as seen from one node."""

import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from csi_ub import parameters, topology
from csi_ub.engines import Engines
from csi_ub.engines.base import Engine, Reach
from csi_ub.model import Snapshot, Volume, VolumeType, is_own_id, is_owned_by
from csi_ub.peers.channel import Peers
from csi_ub.pool import Pool
from csi_ub.pools import kind_of, space
from csi_ub.reasons import Unreachable
from csi_ub.shelf import R, Shelf
from ubhost.errors import InvalidRequest, NotFound, Unsupported

_ASK_S = 2.0  # a staging that also waits for the owner's bytes must end within the 15 s of its caller


@dataclass(frozen=True, slots=True)
class Volumes:
    """The pools of this node, and the way to volumes of others."""

    node: str
    pools: tuple[Pool, ...]
    engines: Engines
    others: tuple[str, ...] = ()  # names of the peers
    supernode: str = "default"
    peers: Peers = field(default_factory=lambda: Peers(""))

    def offer(self) -> None:
        """Answer the drivers of other nodes about our volumes and about what we keep of theirs."""
        for engine in self.engines.known.values():
            for verb, answer in engine.verbs().items():
                self.peers.offer(verb, answer)
        self.peers.offer("volume.usage", self._usage)
        self.peers.offer("volume.context", self._context)

    @property
    def place(self) -> dict[str, str]:
        """The topology segments of this node."""
        return topology.segments(self.node, self.supernode)

    def own(self, volume_id: str) -> tuple[Volume, Pool] | None:
        """Return a volume of this node's pools and its pool, or ``None``."""
        for pool in self.pools:
            volume = pool.volumes.find(volume_id)
            if volume:
                return volume, pool
        return None

    def model(self, name: str) -> tuple[Volume, Pool] | None:
        """Return a model volume of this node's pools by its id or name, and its pool, or ``None``.

        Raises:
            InvalidRequest: the volume is of another type.
        """
        for pool in self.pools:
            volume = pool.volumes.find(name) or pool.volumes.called(name)
            if volume and volume.spec.type is not VolumeType.MODEL:
                raise InvalidRequest(f"volume {name} is of type {volume.spec.type.value}, not model")
            if volume:
                return volume, pool
        return None

    def snapshot(self, snapshot_id: str) -> tuple[Snapshot, Pool] | None:
        """Return a snapshot of this node's pools and its pool, or ``None``."""
        for pool in self.pools:
            snapshot = pool.find_snapshot(snapshot_id)
            if snapshot:
                return snapshot, pool
        return None

    @contextmanager
    def named(self, name: str, shelf: Callable[[Pool], Shelf[R]]) -> Iterator[tuple[R, Pool] | None]:
        """Work alone on what has a name, in whichever pool; give it and its pool, or ``None`` if the name is free.

        Raises:
            Busy: another call is making it just now.
            HostFault: a pool has gone, and with it the knowledge whether the name is free.
        """
        pools = {pool.path.resolve(): pool for pool in self.pools}
        with ExitStack() as locks:
            for path in sorted(pools):  # one order for all, so that no two wait for each other
                pools[path].check()
                locks.enter_context(shelf(pools[path]).name_lock(name))
            yield next(((found, pool) for pool in self.pools if (found := shelf(pool).called(name))), None)

    def find(self, volume_id: str, context: Mapping[str, str]) -> Reach:
        """Return how this node reaches a volume; ``context`` is what its CreateVolume returned.

        Raises:
            NotFound: no such volume.
            InvalidRequest: ``context`` is none that CreateVolume returns.
            Unsupported: it lies on another machine, and its engine does not reach that far.
        """
        own = self.own(volume_id)
        if own:
            return self.reach(*own)
        owner = context.get("owner", "")
        if not is_own_id(volume_id) or not is_owned_by(volume_id, owner) or owner == self.node:
            raise NotFound(f"volume {volume_id!r} does not exist")
        parameters.check_context(context)
        engine = self.engines.named(context.get("engine", ""))
        neighbour = None if engine.spans_machines else _neighbour(context.get("path", ""))
        here = neighbour.volumes.find(volume_id) if neighbour else None
        if neighbour and here:
            found = self.reach(here, neighbour)  # it may have been switched since its context was written
            return replace(found, pool=None) if self.engine(found).spans_machines else found
        if engine.spans_machines:
            return Reach(volume_id, owner, self._newest(volume_id, owner, context), None)
        raise Unsupported(
            f"volume {volume_id} belongs to node {owner}, whose pool is not on this machine: engine "
            f"{context.get('engine', '')} does not reach it"
        )

    def reach(self, volume: Volume, pool: Pool) -> Reach:
        """Return how this node reaches a volume whose pool is on this machine."""
        return Reach(volume.id, volume.owner, self.engines.named(volume.engine).context(volume, pool), pool)

    def knows(self, node: str) -> bool:
        """Whether a node is this one or a peer."""
        return node == self.node or node in self.others

    def _newest(self, volume_id: str, owner: str, context: Mapping[str, str]) -> dict[str, str]:
        """Return what the owner says of a volume now: its consistency may have been switched since it was made.

        Where the owner does not answer, or several nodes share one address and the wrong one did, the engine finds out
        whether the old context is still good.
        """
        try:
            told = self.peers.ask(owner, "volume.context", {"volume": volume_id}, _ASK_S)["context"]
        except (Unreachable, Unsupported, NotFound):
            return dict(context)
        return {str(key): str(value) for key, value in told.items()}

    def again(self, volume_id: str, context: Mapping[str, str]) -> Reach:
        """Return how this node reached a volume that may have gone since."""
        path = context.get("path", "")
        own = next((pool for pool in self.pools if pool.name == context.get("pool")), None)
        pool = own if context.get("owner") == self.node else (attached_pool(path) if path else None)
        return Reach(volume_id, context.get("owner", ""), context, pool)

    def engine(self, reach: Reach) -> Engine:
        return self.engines.named(reach.context.get("engine", ""))

    def _usage(self, content: dict[str, Any]) -> dict[str, Any]:
        volume, pool = self._asked(content)
        used = pool.usage(volume)
        return {"used": used.used, "total": used.total}

    def _context(self, content: dict[str, Any]) -> dict[str, Any]:
        return {"context": dict(self.reach(*self._asked(content)).context)}

    def _asked(self, content: dict[str, Any]) -> tuple[Volume, Pool]:
        found = self.own(str(content.get("volume")))
        if found is None:
            raise NotFound(f"volume {content.get('volume')!r} does not exist on node {self.node}")
        return found

    def refuse_foreign(self, volume_id: str) -> None:
        """Raise ``Unsupported`` for the id of another node's volume: saying "deleted" would leak its bytes."""
        if is_own_id(volume_id) and not is_owned_by(volume_id, self.node):
            owner = next((name for name in self.others if is_owned_by(volume_id, name)), "that is not among our peers")
            raise Unsupported(f"volume {volume_id} belongs to node {owner}: ask the driver of that node")

    def pool(self, name: str | None) -> Pool:
        """Return the pool ``name``, or the first one."""
        for pool in self.pools:
            if name in (None, pool.name):
                return pool
        raise InvalidRequest(f"pool {name!r} is none of {', '.join(pool.name for pool in self.pools)}")


def _neighbour(path: str) -> Pool | None:
    """Return the pool at ``path`` of another node on this machine; only root may have made it."""
    folder = Path(path)
    if not folder.is_absolute():
        return None
    try:
        found = (folder / "volumes").lstat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022:
        return None
    return attached_pool(path)


def attached_pool(path: str) -> Pool:
    """Return the pool at ``path``, whichever node it belongs to and of whatever kind it is."""
    return Pool(path, Path(path), space(kind_of(Path(path))))

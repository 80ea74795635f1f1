"""What every engine has in common.

A volume has one authority: the pool that holds its record. An engine brings its bytes to a node. The life of a
volume: ``prepare`` once at the authority; then on each node ``stage`` (the bytes are here), ``attach`` (the authority
agrees), ``verify`` and ``usage`` as often as somebody asks, ``detach``; at last ``retire`` at the authority. Another
engine (CephFS for those who have a Ceph cluster, shared UB memory) is one more class, which says how it differs from
one copy of the bytes in a pool, with no daemon and nothing beside it; and one more line in ``csi_ub.engines``.
"""
# ruff: noqa: B027 - methods that do nothing are what most engines need

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from csi_ub.model import Attachment, Consistency, Volume
from csi_ub.peers.channel import Verb
from csi_ub.pool import Pool
from csi_ub.pools.base import Usage


@dataclass(frozen=True, slots=True)
class Reach:
    """How a node reaches a volume: what ``context`` returned for it, and its pool if that is on this machine."""

    volume: str
    owner: str
    context: Mapping[str, str]
    pool: Pool | None


def volume_context(engine: str, volume: Volume) -> dict[str, str]:
    """Return the part of a volume context that every engine has."""
    context = {
        "engine": engine,
        "owner": volume.owner,
        "pool": volume.pool,
        "type": volume.spec.type.value,
        "consistency": volume.spec.consistency.value,
    }
    # A node lets a device be as large as the owner says when it stages the volume, or is told to look again.
    return {**context, "size": str(volume.size)} if volume.is_block else context


class Engine(ABC):
    """Every method may raise ``HostFault``.

    ``spans_machines``: nodes of the whole super-node reach its volumes. ``has_devices``: they consist of device nodes.
    """

    __slots__ = ()
    name: str
    spans_machines: bool
    has_devices = False

    def check(self, replicas: int = 1) -> None:
        """Raise ``Unsupported`` if this node lacks what the engine needs to keep a volume ``replicas`` times."""

    def resume(self) -> None:
        """Go on with what an earlier driver left on this node."""

    def verbs(self) -> Mapping[str, Verb]:
        """Return what the drivers of other nodes may ask of this one."""
        return {}

    def tidy(self, find: Callable[[str], Volume | None]) -> None:
        """Do what has to be done now and then beside single volumes; ``find`` gives the record of one of ours."""

    def available(self, pool: Pool, consistency: Consistency) -> int:
        """Return the bytes that new volumes of ``pool`` may have in all; never negative."""
        return pool.space.available(pool.path)

    def room_for(self, want: Volume, limit: int, pool: Pool) -> int:
        """Return the bytes that a new volume gets: at least ``want.size``, at most ``limit`` (0: no limit).

        Raises:
            OutOfRange: it can never be had.
            Exhausted: it is not to be had now.
            Unsupported: the volume cannot be made from its source.
        """
        size = pool.rounded(want, want.size, limit)
        pool.refuse_too_large(size)
        return size

    def prepare(self, volume: Volume, pool: Pool) -> Volume:
        """Make a new volume reachable; return its record, completed. Nothing happens if it is."""
        return volume

    @abstractmethod
    def context(self, volume: Volume, pool: Pool) -> Mapping[str, str]:
        """Return what another node must know to reach the volume; no secrets."""

    def nodes(self, volume: Volume) -> tuple[str, ...]:
        """Return the only nodes that reach the volume; none if that is not a matter of the volume."""
        return ()

    def capacity(self, volume: Volume, pool: Pool) -> int:
        """Return the bytes that a volume is sure to have; 0 if nobody holds it to its size."""
        return volume.size if pool.space.has_quota or volume.is_block else 0

    def is_prepared(self, volume: Volume) -> bool:
        """Whether ``prepare`` came to its end, as far as the record tells; if not, it is called again."""
        return True

    def look_after(self, volume: Volume, pool: Pool) -> None:
        """Start what died since it was prepared. The caller holds the volume's lock."""

    def grow(self, volume: Volume, pool: Pool, size: int) -> Volume:
        """Let a volume have at least ``size`` bytes, everywhere; return its record.

        Raises:
            OutOfRange: there is not so much space.
            Unsupported: it cannot grow.
        """
        return pool.grow(volume.id, size)

    def check_current(self, volume: Volume, pool: Pool) -> None:
        """Raise ``Unreachable`` if the bytes in the pool may not be the newest, so that a copy would be an old one."""

    def fence(self, volume: Volume, pool: Pool) -> None:
        """See that the nodes of ``volume.fenced`` reach it no more, and all others do.

        Raises:
            Unsupported: this engine cannot shut out a node that is alive.
        """

    def expel(self, volume: Volume, pool: Pool, node: str) -> None:
        """Forget that a node uses the volume, which it cannot say itself any more."""
        with pool.share(volume.id) as share:
            share.detach(node)

    def retire(self, volume: Volume, pool: Pool) -> None:
        """Stop making the volume reachable, before it is deleted or another engine takes over."""

    def refuse_copies(self, volume: Volume) -> None:
        """Raise ``InUse`` if bytes of a volume that no node uses may still be elsewhere only."""

    def forget(self, volume: Volume, pool: Pool) -> None:
        """Remove what the engine keeps beside the files of a retired volume; it may be gone in part."""

    @abstractmethod
    def stage(self, reach: Reach) -> int:
        """Bring the volume here; return a descriptor of the folder that pods see, good for binding.

        Raises:
            NotFound: there is no such volume.
            Unreachable: its owner does not answer.
        """

    @abstractmethod
    def attach(self, reach: Reach, attachment: Attachment) -> None:
        """Let the authority note that a node uses the volume, which is staged here.

        Raises:
            InUse: another node has it, and one of the two wants it for itself.
        """

    def is_alive(self, reach: Reach) -> bool:
        """Whether what ``stage`` brought here still works; never hangs."""
        return True

    def devices(self, reach: Reach) -> tuple[str, ...]:
        """Return the names of the device nodes of this node that pods must be able to open for the volume."""
        return ()

    @abstractmethod
    def verify(self, reach: Reach) -> None:
        """Raise what is wrong with the volume as seen from here; never hangs."""

    @abstractmethod
    def usage(self, reach: Reach) -> Usage | None:
        """Return what the volume uses, or ``None`` if that cannot be told from here."""

    @abstractmethod
    def detach(self, reach: Reach, node: str) -> None:
        """Let the authority forget the node, and let go of the volume here; both may be done already."""

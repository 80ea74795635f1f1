"""Memory that nodes share as a DAX device: CXL memory that several hosts see, or an nvdimm of several guests.

A region has one name on all nodes, a device on each, and one owner among them, which gives it to volumes, whole: who
has a device can map all of it. The volume's record is the lease. The owner fills a region with zeroes before a volume
gets it, also if the last volume was deleted by a driver that was killed; it notes who uses the volume, as for NFS; a
node lets go of one only when none of its processes has the device open.

The nodes see the same bytes; when, is a matter of their caches. Where the hardware keeps those alike (``coherent``)
memory can be strong; elsewhere it is eventual, and each node empties its caches of what it gives back.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from csi_ub.config import DaxRegion
from csi_ub.engines.base import Reach
from csi_ub.engines.memory import MemoryEngine, refuse_source
from csi_ub.engines.noted import Noted
from csi_ub.locks import hold
from csi_ub.memory import dax, folder, regions, sizes
from csi_ub.memory.view import Device, Memory, Terms
from csi_ub.model import Attachment, Consistency, Lease, Volume
from csi_ub.openfiles import users_of
from csi_ub.parameters import DAX
from csi_ub.peers.channel import Peers, Verb
from csi_ub.pool import Pool
from csi_ub.reasons import InUse, OutOfRange, Unreachable
from ubhost.errors import Busy, Exhausted, HostFault, NotFound, UbError, Unsupported
from ubhost.kernel import caches

_ZERO_S = 8.0  # a call must end within the 15 s of its caller, and goes on where it stopped
_USED = f"{DAX}.used"
_TERMS = {
    Consistency.STRONG: Terms(
        ("O_RDWR",),
        "none",
        "strong: map shared, in multiples of align; the hardware keeps the caches of all nodes alike, what one stores "
        "the others load. Two writers of one place agree by atomic operations or a lock of their own in the memory.",
    ),
    Consistency.EVENTUAL: Terms(
        ("O_RDWR",),
        "cache lines: many read or one writes",
        "eventual: map shared, in multiples of align; each node caches lines, and nobody keeps them alike. To publish "
        "write lines back (CLFLUSHOPT or CLWB, then SFENCE; on Arm DC CVAC, DSB); to refresh drop them before they are "
        "loaded (CLFLUSHOPT, then MFENCE; on Arm DC CIVAC, DSB). msync does neither. A line has one writer at a time.",
    ),
}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DaxEngine(MemoryEngine):
    """``shared`` are the regions of the super-node, ``pools`` those of this node; ``sys`` tells of its devices.

    ``users`` are the processes that have a device; one call fills memory with zeroes for ``zero_s`` seconds.
    """

    sys: Path
    shared: tuple[DaxRegion, ...]
    pools: tuple[Pool, ...]
    peers: Peers
    users: Callable[[Path], list[int]] = users_of
    zero_s: float = _ZERO_S

    name = DAX

    @property
    def noted(self) -> Noted:
        return Noted(self.name, self.pools, self.peers)

    def check(self, replicas: int = 1) -> None:
        if replicas > 1:
            raise Unsupported("shared memory is there once")
        if not any(self.peers.node in region.devices for region in self.shared):
            raise Unsupported(f"node {self.peers.node} shares no DAX device: none is in the configuration (key dax)")

    def verbs(self) -> Mapping[str, Verb]:
        return {**self.noted.verbs(), _USED: self._used}

    def available(self, pool: Pool, consistency: Consistency) -> int:
        """Return the most that one volume can have."""
        found = (it for it in self._regions() if it.keeps(consistency) and not it.holder)
        return max((it.size or 0 for it in found), default=0)

    def room_for(self, want: Volume, limit: int, pool: Pool) -> int:
        """Return the bytes of the region that it would get; what bounds it is the memory, not the pool."""
        refuse_source(want)
        found = regions.choose(self._regions(), want.size, limit, want.spec.consistency)
        if not found.is_coherent:
            caches.check()
        self._refuse_over_quota(want.spec.namespace, found.size or 0)
        return found.size or 0

    def is_prepared(self, volume: Volume) -> bool:
        return volume.lease is not None and volume.lease.zeroed == volume.size

    def prepare(self, volume: Volume, pool: Pool) -> Volume:
        """Give a volume its region, with nothing in it.

        Raises:
            Exhausted: another volume took the last one just now.
            Busy: it is not all zeroes yet; the next call goes on.
        """
        if volume.lease is None:
            volume = self._leased(volume, pool)
        if not self.is_prepared(volume):
            volume = pool.volumes.update(volume.id, self._zeroed)
        if not self.is_prepared(volume) and volume.lease:
            done = f"{volume.lease.zeroed} of {volume.size} bytes"
            raise Busy(f"memory {volume.lease.region} is being filled with zeroes for volume {volume.id}: {done}")
        return volume

    def context(self, volume: Volume, pool: Pool) -> Mapping[str, str]:
        region = volume.lease.region if volume.lease and self.is_prepared(volume) else ""  # as if it were not there
        return {**MemoryEngine.context(self, volume, pool), "region": region}

    def nodes(self, volume: Volume) -> tuple[str, ...]:
        leased = volume.lease.region if volume.lease else ""
        return next((tuple(region.devices) for region in self.shared if region.name == leased), ())

    def bring(self, reach: Reach) -> Memory:
        if not self._region(reach).coherent:
            caches.check()  # what it brings into its caches here it must be able to take out
        return self.seen(reach)

    def seen(self, reach: Reach) -> Memory:
        region, size = self._region(reach), reach.context.get("size")
        found = dax.look(self.sys, region.devices[self.peers.node])
        if str(found.size) != size:
            raise HostFault(f"volume {reach.volume} has {size} bytes, DAX device {found.name} {found.size}")
        consistency = Consistency(reach.context.get("consistency", Consistency.STRONG.value))
        device = Device(found.name, found.size, align=found.align)
        return Memory(region.name, consistency, found.size, (device,), _TERMS[consistency])

    def attach(self, reach: Reach, attachment: Attachment) -> None:
        self.noted.attach(reach, attachment)

    def expel(self, volume: Volume, pool: Pool, node: str) -> None:
        raise InUse(f"volume {volume.id} is memory that node {node} has: only it can let go, or a reboot of it")

    def detach(self, reach: Reach, node: str) -> None:
        """Let go of the memory.

        Raises:
            InUse: a process has the device open or mapped.
        """
        region = self._region(reach)
        with suppress(NotFound):  # a device that has gone nobody uses
            found = dax.look(self.sys, region.devices[self.peers.node])
            self._refuse_users(reach.volume, found.name)
            if not region.coherent:
                dax.drop_caches(self.dev / found.name, found)
        with suppress(NotFound):
            self.noted.detach(reach, node)
        folder.remove(self.place(reach))

    def _region(self, reach: Reach) -> DaxRegion:
        """Return the region of a volume, which this node shares.

        Raises:
            Unsupported: it does not.
            HostFault: the nodes are configured differently.
        """
        name, node = reach.context.get("region", ""), self.peers.node
        region = next((it for it in self.shared if it.name == name and node in it.devices), None)
        if region is None:
            raise Unsupported(f"volume {reach.volume} is memory {name!r}, which node {node} does not share (key dax)")
        if region.owner != reach.owner:
            raise HostFault(f"memory {name} of volume {reach.volume} is node {region.owner}'s, not {reach.owner}'s")
        return region

    def _regions(self) -> list[regions.Region]:
        taken = {lease.region: volume.id for volume in self._own() if (lease := volume.lease)}
        return [self._seen_region(region, taken.get(region.name)) for region in self.shared]

    def _seen_region(self, region: DaxRegion, volume_id: str | None) -> regions.Region:
        node, size, holder = self.peers.node, None, f"of volume {volume_id}" if volume_id else ""
        if region.owner != node:
            holder = f"given by node {region.owner}"
        if node in region.devices:
            try:
                size = dax.look(self.sys, region.devices[node]).size
            except UbError as error:
                holder = holder or str(error)
        return regions.Region(region.name, size, region.coherent, holder)

    def _own(self) -> Iterator[Volume]:
        """Yield every volume of this node; a pool or a record that cannot be read is no proof that memory is free."""
        for pool in self.pools:
            pool.check()
            for path in pool.volumes.home.iterdir():
                if volume := pool.volumes.find(path.name):
                    yield volume

    def _leased(self, volume: Volume, pool: Pool) -> Volume:
        with hold(self.pools[0].path / "locks", "shared memory"):
            known = pool.volumes.find(volume.id)
            if known is None or known.lease:  # another call was faster
                return known or volume
            try:
                found = regions.choose(self._regions(), volume.size, volume.size, volume.spec.consistency)
                # Another node may have made some for the namespace at the same time: then neither gets it.
                self._refuse_over_quota(volume.spec.namespace, 0)
            except (Exhausted, OutOfRange, Unsupported, Unreachable):
                pool.volumes.delete(volume.id, lambda _: None)
                raise
            return pool.volumes.update(volume.id, lambda it: replace(it, lease=Lease(found.name)))

    def _zeroed(self, volume: Volume) -> Volume:
        if self.is_prepared(volume) or volume.lease is None:
            return volume
        region = next((it for it in self.shared if it.name == volume.lease.region), None)
        if region is None:
            raise HostFault(f"memory {volume.lease.region} of volume {volume.id} is not in the configuration any more")
        found = dax.look(self.sys, region.devices[self.peers.node])
        if found.size != volume.size:
            raise HostFault(f"volume {volume.id} has {volume.size} bytes, DAX device {found.name} {found.size}")
        self._refuse_users(volume.id, found.name)  # whoever that is, it would lose what it has there
        until = time.monotonic() + self.zero_s
        zeroed = dax.zero(self.dev / found.name, found, volume.lease.zeroed, until, is_coherent=region.coherent)
        log.info("filled with zeroes", extra={"volume_id": volume.id, "region": region.name, "bytes": zeroed})
        return replace(volume, lease=Lease(region.name, zeroed))

    def _refuse_users(self, volume_id: str, name: str) -> None:
        try:
            users = self.users(self.dev / name)
        except OSError as error:
            raise HostFault(f"DAX device {name} of volume {volume_id} has no node in {self.dev}") from error
        if users:
            who = ", ".join(map(str, users))
            raise InUse(f"/dev/{name}, memory for volume {volume_id}, is open or mapped in process {who}")

    def _refuse_over_quota(self, namespace: str, size: int) -> None:
        if sizes.quota(namespace, self.quotas) is None:
            return
        content, owners = {"namespace": namespace}, {region.owner for region in self.shared} - {self.peers.node}
        told = [self._used(content), *(self.peers.ask(owner, _USED, content) for owner in sorted(owners))]
        sizes.refuse_over_quota(namespace, size, sum(int(each["bytes"]) for each in told), self.quotas)

    def _used(self, content: dict[str, Any]) -> dict[str, Any]:
        """Tell what the claims of a namespace have of this node's memory."""
        ours = (it for it in self._own() if it.engine == self.name and it.spec.namespace == content.get("namespace"))
        return {"bytes": sum(volume.size for volume in ours)}

"""Memory that nodes of a super-node share, by UBSE.

One node exports the memory, every node that stages the volume imports it. Strong memory is not cached by anybody;
eventual memory is cached, and owned page by page by its users. UBSE keeps the order: what is attached anywhere is not
deleted, what is mapped is not detached. It goes with its exporter.

Which nodes use the memory is UBSE's knowledge; of ours the record has an attachment besides.
"""

from contextlib import suppress
from dataclasses import dataclass

from csi_ub.engines.base import Reach
from csi_ub.engines.memory import MemoryEngine, refuse_source
from csi_ub.memory import folder, sizes
from csi_ub.memory.view import Device, Memory, Terms
from csi_ub.model import Attachment, Consistency, Volume
from csi_ub.parameters import SHARED_MEMORY
from csi_ub.pool import Pool
from csi_ub.reasons import InUse
from ubhost.errors import Conflict, NotFound, UbError, Unsupported
from ubhost.ubse.client import Ubse
from ubhost.ubse.memory import MAX_SIZE
from ubhost.ubse.shm import Shm, ShmCreate

_TERMS = {
    Consistency.STRONG: Terms(
        ("O_RDWR", "O_SYNC"),
        "none",
        "strong: open with O_SYNC and map shared; nothing is cached, what one node writes the others read. Two "
        "writers of one place agree by atomic operations or a lock of their own.",
    ),
    Consistency.EVENTUAL: Terms(
        ("O_RDWR",),
        "pages: many READ or one WRITE",
        "eventual: open without O_SYNC and map shared. Own pages before you touch them (obmm_set_ownership): many "
        "nodes may READ a page, or one WRITE it. To publish give WRITE up (PROT_NONE); to refresh take READ again.",
    ),
}


@dataclass(frozen=True, slots=True)
class ShmEngine(MemoryEngine):
    ubse: Ubse

    name = SHARED_MEMORY

    def check(self, replicas: int = 1) -> None:
        if replicas > 1:
            raise Unsupported("shared memory is there once: its bytes are gone with the node that exports it")
        try:
            self.ubse.shms()
        except UbError as error:
            raise Unsupported(f"no shared UB memory on this node: {error}") from error

    def available(self, pool: Pool, consistency: Consistency) -> int:
        """Return the most that one volume can have: what the lenders have left UBSE does not tell."""
        return MAX_SIZE

    def room_for(self, want: Volume, limit: int, pool: Pool) -> int:
        """Return whole blocks; what bounds them is the quota of the namespace, not the pool."""
        refuse_source(want)
        found = sizes.rounded(want.size, limit)
        self._refuse_over_quota(want.spec.namespace, found)
        return found

    def prepare(self, volume: Volume, pool: Pool) -> Volume:
        name, namespace = _name(volume.id), volume.spec.namespace
        with suppress(NotFound):
            self.ubse.get_shm(name)
            return volume
        is_cacheable = volume.spec.consistency is Consistency.EVENTUAL
        with suppress(Conflict):  # another call was faster
            self.ubse.create_shm(ShmCreate(name, volume.size, is_cacheable, sizes.tag(namespace)))
        try:  # another node may have made some for the namespace at the same time: then neither gets it
            self._refuse_over_quota(namespace, 0)
        except UbError:
            self.ubse.delete_shm(name)
            raise
        return volume

    # There is no ``look_after``: memory that went with its exporter would be empty if it was made again, and nobody
    # would know.

    def bring(self, reach: Reach) -> Memory:
        return view(self.ubse.attach_shm(_name(reach.volume)))

    def seen(self, reach: Reach) -> Memory:
        return view(self.ubse.get_shm(_name(reach.volume)))

    def attach(self, reach: Reach, attachment: Attachment) -> None:
        if reach.pool:  # of the others UBSE knows that they have it
            with reach.pool.share(reach.volume) as share:
                share.attach(attachment)

    def detach(self, reach: Reach, node: str) -> None:
        with suppress(NotFound):
            if self.ubse.get_shm(_name(reach.volume)).memids:
                self.ubse.detach_shm(_name(reach.volume))
        folder.remove(self.place(reach))
        if reach.pool:
            with suppress(NotFound), reach.pool.share(reach.volume) as share:
                share.detach(node)

    def retire(self, volume: Volume, pool: Pool) -> None:
        with suppress(NotFound):
            memory: Shm = self.ubse.get_shm(_name(volume.id))
            if memory.nodes:
                raise InUse(f"volume {volume.id} is in use on node {', '.join(memory.nodes)}")
            self.ubse.delete_shm(memory.name)

    def _refuse_over_quota(self, namespace: str, size: int) -> None:
        if sizes.quota(namespace, self.quotas) is not None:
            used = sum(region.size for region in self.ubse.shms() if region.info == sizes.tag(namespace))
            sizes.refuse_over_quota(namespace, size, used, self.quotas)


def view(region: Shm) -> Memory:
    """Return a region as the asking node has it."""
    consistency = Consistency.EVENTUAL if region.is_cacheable else Consistency.STRONG
    part = region.size // len(region.memids) if region.memids else 0
    devices = tuple(Device(f"obmm_shmdev{memid}", part, memid) for memid in region.memids)
    return Memory(region.name, consistency, region.size, devices, _TERMS[consistency])


def _name(volume_id: str) -> str:
    """Return what UBSE calls the memory of a volume: 35 bytes of its 47."""
    return f"ub-{volume_id.rpartition('-')[2]}"

"""Memory that nodes of a super-node share, by UBSE: volumes of type memory.

One node exports the memory, every node that stages the volume imports it, and pods get its device nodes in a folder
(``csi_ub.memory.folder``). Strong memory is not cached by anybody; eventual memory is cached, and owned page by page.
UBSE keeps the order: what is attached anywhere is not deleted, what is mapped is not detached.

The record lies in a pool as every volume's does, but not the bytes: they need no space there, and are gone with the
exporter. Which nodes use the memory is UBSE's knowledge; of ours the record has an attachment besides.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from csi_ub.engines.base import Engine, Reach, volume_context
from csi_ub.memory import folder, sizes
from csi_ub.model import Attachment, Consistency, Volume
from csi_ub.parameters import SHARED_MEMORY
from csi_ub.pool import Pool
from csi_ub.pools.base import Usage
from csi_ub.reasons import InUse
from ubhost.errors import Conflict, HostFault, NotFound, UbError, Unsupported
from ubhost.ubse.client import Ubse
from ubhost.ubse.memory import MAX_SIZE
from ubhost.ubse.shm import Shm, ShmCreate


@dataclass(frozen=True, slots=True)
class ShmEngine(Engine):
    """``dev`` has the device nodes, ``run`` the folders that pods see; ``quotas`` are bytes by namespace."""

    ubse: Ubse
    dev: Path
    run: Path
    quotas: Mapping[str, int]

    name = SHARED_MEMORY
    spans_machines = True
    has_devices = True

    def check(self, replicas: int = 1) -> None:
        if replicas > 1:
            raise Unsupported("shared memory is there once: its bytes are gone with the node that exports it")
        try:
            self.ubse.shms()
        except UbError as error:
            raise Unsupported(f"no shared UB memory on this node: {error}") from error

    def available(self, pool: Pool) -> int:
        """Return the most that one volume can have: what the lenders have left UBSE does not tell."""
        return MAX_SIZE

    def room_for(self, want: Volume, limit: int, pool: Pool) -> int:
        """Return whole blocks; what bounds them is the quota of the namespace, not the pool."""
        if want.source:
            raise Unsupported(f"memory starts empty: {want.source} can only be copied into it by a pod")
        found = sizes.rounded(want.size, limit)
        sizes.refuse_over_quota(want.spec.namespace, found, self.ubse.shms(), self.quotas)
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
            sizes.refuse_over_quota(namespace, 0, self.ubse.shms(), self.quotas)
        except UbError:
            self.ubse.delete_shm(name)
            raise
        return volume

    # There is no ``look_after``: memory that went with its exporter would be empty if it was made again, and nobody
    # would know.

    def capacity(self, volume: Volume, pool: Pool) -> int:
        return volume.size

    def grow(self, volume: Volume, pool: Pool, size: int) -> Volume:
        if size > volume.size:  # the nodes that map it would not see it
            raise Unsupported(f"volume {volume.id} is memory of {volume.size} bytes: it cannot grow")
        return volume

    def check_current(self, volume: Volume, pool: Pool) -> None:
        raise Unsupported(f"volume {volume.id} is memory: it has no snapshots and no clones, copy it in a pod")

    def fence(self, volume: Volume, pool: Pool) -> None:
        if volume.fenced:
            raise Unsupported(f"volume {volume.id} is memory: a node that has it attached cannot be shut out")

    def context(self, volume: Volume, pool: Pool) -> Mapping[str, str]:
        return {**volume_context(self.name, volume), "size": str(volume.size)}

    def stage(self, reach: Reach) -> int:
        memory = self.ubse.attach_shm(_name(reach.volume))
        place = self._place(reach.volume)
        folder.make(place, reach.volume, memory, self.dev)
        return os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def attach(self, reach: Reach, attachment: Attachment) -> None:
        if reach.pool:  # of the others UBSE knows that they have it
            with reach.pool.share(reach.volume) as share:
                share.attach(attachment)

    def verify(self, reach: Reach) -> None:
        memory = self.ubse.get_shm(_name(reach.volume))
        missing = [memid for memid in memory.memids if not (self.dev / f"obmm_shmdev{memid}").exists()]
        if missing:
            raise HostFault(f"memory of volume {reach.volume}: device obmm_shmdev{missing[0]} is gone")

    def usage(self, reach: Reach) -> Usage | None:
        size = int(reach.context.get("size", "0"))
        return Usage(size, size)

    def detach(self, reach: Reach, node: str) -> None:
        with suppress(NotFound):
            if self.ubse.get_shm(_name(reach.volume)).memids:
                self.ubse.detach_shm(_name(reach.volume))
        folder.remove(self._place(reach.volume))
        if reach.pool:
            with suppress(NotFound), reach.pool.share(reach.volume) as share:
                share.detach(node)

    def retire(self, volume: Volume, pool: Pool) -> None:
        with suppress(NotFound):
            memory: Shm = self.ubse.get_shm(_name(volume.id))
            if memory.nodes:
                raise InUse(f"volume {volume.id} is in use on node {', '.join(memory.nodes)}")
            self.ubse.delete_shm(memory.name)

    def devices(self, reach: Reach) -> tuple[str, ...]:
        return folder.devices(self.ubse.get_shm(_name(reach.volume)), self.dev)  # a pod can change its folder

    def _place(self, volume_id: str) -> Path:
        return self.run / volume_id


def _name(volume_id: str) -> str:
    """Return what UBSE calls the memory of a volume: 35 bytes of its 47."""
    return f"ub-{volume_id.rpartition('-')[2]}"

"""Memory that nodes of a super-node share, by UBSE: volumes of type memory.

One node exports the memory, every node that stages the volume imports it, and pods get its device nodes in a folder
(``csi_ub.memory.folder``). Strong memory is not cached by anybody; eventual memory is cached, and owned page by page.
UBSE keeps the order: what is attached anywhere is not deleted, what is mapped is not detached.

The record lies in a pool as every volume's does, but not the bytes: they need no space there, and are gone with the
exporter. Which nodes use the memory is UBSE's knowledge; of ours the record has an attachment besides.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from csi_ub.engines.base import Reach, volume_context
from csi_ub.memory import folder, sizes
from csi_ub.model import Attachment, Consistency, Volume
from csi_ub.peers.channel import Verb
from csi_ub.pool import Pool
from csi_ub.pools.base import Usage
from csi_ub.reasons import InUse
from ubhost.errors import Conflict, HostFault, NotFound, UbError, Unsupported
from ubhost.ubse.client import Ubse
from ubhost.ubse.shm import Shm, ShmCreate


@dataclass(frozen=True, slots=True)
class ShmEngine:
    """``dev`` has the device nodes, ``run`` the folders that pods see; ``quotas`` are bytes by namespace."""

    ubse: Ubse
    dev: Path
    run: Path
    quotas: Mapping[str, int]

    name = "ub-shm"
    spans_machines = True

    def check(self, replicas: int = 1) -> None:
        if replicas > 1:
            raise Unsupported("shared memory is there once: its bytes are gone with the node that exports it")
        try:
            self.ubse.shms()
        except UbError as error:
            raise Unsupported(f"no shared UB memory on this node: {error}") from error

    def resume(self) -> None:
        """UBSE keeps what is attached."""

    def verbs(self) -> Mapping[str, Verb]:
        return {}

    def tidy(self, find: Callable[[str], Volume | None]) -> None:
        """Nothing is left lying about."""

    def room_for(self, size: int, limit: int, namespace: str) -> int:
        """Return the bytes that a volume of ``size`` gets.

        Raises:
            OutOfRange: whole blocks of it are more than ``limit``.
            Exhausted: that is over the quota of the namespace.
        """
        found = sizes.rounded(size, limit)
        sizes.refuse_over_quota(namespace, found, self.ubse.shms(), self.quotas)
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

    def look_after(self, volume: Volume, pool: Pool) -> None:
        """Memory that went with its exporter is not made again: it would be empty, and nobody would know."""

    def grown(self, volume: Volume, pool: Pool) -> None:
        """It does not grow, see ``refuse_growth``."""

    def check_current(self, volume: Volume, pool: Pool) -> None:
        raise Unsupported(f"volume {volume.id} is memory: it has no snapshots and no clones, copy it in a pod")

    def fence(self, volume: Volume, pool: Pool) -> None:
        if volume.fenced:
            raise Unsupported(f"volume {volume.id} is memory: a node that has it attached cannot be shut out")

    def expel(self, volume: Volume, pool: Pool, node: str) -> None:
        with pool.share(volume.id) as share:
            share.detach(node)

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

    def is_alive(self, reach: Reach) -> bool:
        return True  # there is no daemon that could die

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

    def refuse_copies(self, volume: Volume) -> None:
        """There is none."""

    def forget(self, volume: Volume, pool: Pool) -> None:
        """Nothing is kept beside the files."""

    def retire(self, volume: Volume, pool: Pool) -> None:
        with suppress(NotFound):
            memory: Shm = self.ubse.get_shm(_name(volume.id))
            if memory.nodes:
                raise InUse(f"volume {volume.id} is in use on node {', '.join(memory.nodes)}")
            self.ubse.delete_shm(memory.name)

    def devices(self, volume_id: str) -> tuple[str, ...]:
        """Return the names of the volume's device nodes on this node, by the word of UBSE."""
        return folder.devices(self.ubse.get_shm(_name(volume_id)), self.dev)

    def _place(self, volume_id: str) -> Path:
        return self.run / volume_id


def refuse_growth(volume: Volume, size: int) -> None:
    """Raise ``Unsupported`` if a memory volume is asked to grow: the nodes that map it would not see it."""
    if size > volume.size:
        raise Unsupported(f"volume {volume.id} is memory of {volume.size} bytes: it cannot grow")


def _name(volume_id: str) -> str:
    """Return what UBSE calls the memory of a volume: 35 bytes of its 47."""
    return f"ub-{volume_id.rpartition('-')[2]}"

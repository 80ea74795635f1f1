"""What all volumes of type memory have in common, wherever the memory comes from.

Pods get its device nodes in a folder (``csi_ub.memory.folder``). The record lies in a pool as every volume's does, but
not the bytes: they need no space there, do not grow, and have no copies.
"""

import os
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from csi_ub.engines.base import Engine, Reach, volume_context
from csi_ub.memory import folder
from csi_ub.memory.view import Memory
from csi_ub.model import Volume
from csi_ub.pool import Pool
from csi_ub.pools.base import Usage
from ubhost.errors import HostFault, Unsupported


@dataclass(frozen=True, slots=True)
class MemoryEngine(Engine):
    """``dev`` has the device nodes, ``run`` the folders that pods see; ``quotas`` are bytes by namespace."""

    dev: Path
    run: Path
    quotas: Mapping[str, int]

    spans_machines = True
    has_devices = True

    @abstractmethod
    def bring(self, reach: Reach) -> Memory:
        """Let this node have the memory of a volume; return what it has then.

        Raises:
            NotFound: there is no such memory.
            Unsupported: this node cannot have it.
        """

    @abstractmethod
    def seen(self, reach: Reach) -> Memory:
        """Return what this node has of the memory of a volume; raises what ``bring`` does."""

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
        place = self.place(reach)
        folder.make(place, reach.volume, self.bring(reach), self.dev)
        return os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def verify(self, reach: Reach) -> None:
        for device in self.seen(reach).devices:
            if not (self.dev / device.node).exists():
                raise HostFault(f"memory of volume {reach.volume}: device {device.node} is gone")

    def usage(self, reach: Reach) -> Usage | None:
        size = int(reach.context.get("size", "0"))
        return Usage(size, size)

    def devices(self, reach: Reach) -> tuple[str, ...]:
        return folder.devices(self.seen(reach), self.dev)  # a pod can change its folder

    def place(self, reach: Reach) -> Path:
        """Return the folder that pods of this node see."""
        return self.run / reach.volume


def refuse_source(want: Volume) -> None:
    """Raise ``Unsupported`` if a new volume is to be made from another."""
    if want.source:
        raise Unsupported(f"memory starts empty: {want.source} can only be copied into it by a pod")

"""What a node can tell of the volumes that are mounted on it; nothing here changes anything."""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from csi_ub.blocks import Blocks
from csi_ub.bounded import Bounded
from csi_ub.engines.base import Reach
from csi_ub.model import VolumeType
from csi_ub.mounter import canonical
from csi_ub.noderecord import NodeRecord, NodeRecords
from csi_ub.pools.base import Usage
from csi_ub.volumes import Volumes
from ubhost.errors import InvalidRequest, NotFound, UbError
from ubhost.kernel import mountinfo
from ubhost.kernel.mountinfo import Origin

_STATS_S = 3.0  # kubelet asks every minute for every volume; a hung one must not hold it up


@dataclass(frozen=True, slots=True)
class Stats:
    """What a volume uses; ``None`` is unknown. ``fault`` says what is wrong, if something is.

    Of a device nobody knows what of it is used: ``device`` is its size.
    """

    bytes: Usage | None
    inodes: Usage | None
    fault: str | None
    device: int | None = None


@dataclass(frozen=True, slots=True)
class NodeLooks:
    """``run`` is the folder of the records of ``NodeVolumes``."""

    volumes: Volumes
    run: Path
    blocks: Blocks
    bounded: Bounded = field(default_factory=Bounded)

    def stats(self, volume_id: str, path: str) -> Stats:
        """Return what a volume that is mounted at ``path`` uses, and what is wrong with it; never hangs.

        Raises:
            NotFound: the volume is not mounted there.
        """
        record = self._mounted(volume_id, path)
        reach = self.volumes.again(volume_id, record.context)
        try:
            return self.bounded.run(f"statistics of volume {volume_id}", lambda: self._stats(reach), _STATS_S)
        except UbError as error:
            return Stats(None, None, str(error))

    def size(self, volume_id: str, path: str) -> int:
        """Return the bytes of a volume that is mounted at ``path``; 0 if its record lies on another machine.

        Raises:
            NotFound: the volume is not mounted there.
        """
        reach = self.volumes.again(volume_id, self._mounted(volume_id, path).context)
        volume = reach.pool.volumes.find(volume_id) if reach.pool else None
        return volume.size if volume else 0

    def _mounted(self, volume_id: str, path: str) -> NodeRecord:
        record = NodeRecords(self.run).read(volume_id)
        mounted: tuple[mountinfo.Mount, ...] = ()
        if record:
            with suppress(InvalidRequest):  # no volume is ever mounted at a path that cannot be a mount point
                target = canonical(path)
                mounted = mountinfo.at(mountinfo.read_at(target), target)
        if record is None or not mounted or mounted[-1].origin not in self._shown(record):
            raise NotFound(f"volume {volume_id} is not mounted at {path}")
        return record

    def _shown(self, record: NodeRecord) -> set[Origin]:
        devices = self.blocks.origins(record.volume) if record.is_block else ()
        return {record.origin, *record.former, *devices}

    def _stats(self, reach: Reach) -> Stats:
        engine = self.volumes.engine(reach)
        engine.verify(reach)
        if reach.context.get("type") == VolumeType.BLOCK.value:
            size = self.blocks.size(reach.volume)
            fault = None if size else f"a device of volume {reach.volume} has lost its disk, or there is none"
            return Stats(None, None, fault, size)
        folder = engine.stage(reach)
        try:
            files = os.fstatvfs(folder)
        finally:
            os.close(folder)
        inodes = Usage(files.f_files - files.f_ffree, files.f_files) if files.f_files else None
        return Stats(engine.usage(reach), inodes, None)

"""The mounts of volumes on a node, and how they are told from others: what staging and publishing have in common."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from csi_ub import propagation
from csi_ub.blocks import Blocks, Shown, size_of
from csi_ub.engines.base import Reach
from csi_ub.model import AccessMode, Attachment, Capability
from csi_ub.mounter import Mounter, see
from csi_ub.noderecord import Debts, NodeRecord, NodeRecords, Use
from csi_ub.plan import plan_mount, plan_unmount
from csi_ub.reasons import NotStaged
from csi_ub.share import boot_id
from csi_ub.steps import Bind
from csi_ub.uses import use_for
from csi_ub.volumes import Volumes
from ubhost.apply import apply
from ubhost.errors import UbError
from ubhost.kernel import mountinfo
from ubhost.kernel.mountinfo import Origin
from ubhost.kernel.mounts import Attribute

Table = tuple[mountinfo.Mount, ...]


@dataclass(frozen=True, slots=True)
class NodeMounts:
    """The volumes of node ``volumes.node``.

    ``run`` is the folder for its records and locks, which die with the mounts; ``debts`` outlive a reboot.
    """

    volumes: Volumes
    run: Path
    debts: Debts
    is_alone: bool = field(default_factory=propagation.is_alone)  # see csi_ub.propagation

    @property
    def inline(self) -> Path:
        """Where volumes that pods bring are staged, and noted."""
        return self.run / "inline"

    @property
    def blocks(self) -> Blocks:
        """The devices of volumes of type block."""
        return Blocks(self.volumes.node, self.run / "blocks")

    @property
    def _locks(self) -> Path:
        return self.run / "locks"

    @property
    def _records(self) -> NodeRecords:
        return NodeRecords(self.run)

    @contextmanager
    def _source(self, reach: Reach) -> Iterator[tuple[int, Origin, Table]]:
        """Bring a volume here; open the folder to bind, tell what its mounts will show, and what is mounted now."""
        source = self.volumes.engine(reach).stage(reach)
        try:
            table = mountinfo.read()
            yield source, mountinfo.origin(table, source), table
        finally:
            os.close(source)

    @contextmanager
    def _noted(self, before: NodeRecord, after: NodeRecord) -> Iterator[None]:
        """Write down what is wanted before it is done; take the note back if it cannot be done."""
        self._records.write(after)
        try:
            yield
        except BaseException:
            self._records.write(before)
            raise

    def _revived(self, record: NodeRecord, reach: Reach, staging: Path) -> NodeRecord:
        """Return the record of a staged volume whose data daemon lives; a dead one is started again, and restaged."""
        if str(staging) not in record.staged or self.volumes.engine(reach).is_alive(reach):
            return record
        with self._source(reach) as (source, origin, table):
            after = record.at_origin(origin)
            bind = Bind(str(staging), origin, record.staged[str(staging)].attributes)
            with self._noted(record, after):
                apply(plan_mount(bind, see(staging, table), frozenset(after.former)), Mounter(source).do)
        return after

    @contextmanager
    def _shown(self, reach: Reach, record: NodeRecord, staging: Path, table: Table, use: Use) -> Iterator[Shown]:
        """Give what pods are to see of a staged volume: its folder, or the device that its disk becomes for it.

        If the body fails, a device that no pod has is given up again.
        """
        if not record.is_block:
            yield Shown(record.origin, frozenset(record.former), lambda: _open_staged(record, staging, table))
            return
        os.close(_open_staged(record, staging, table))
        is_read_only = bool(use.attributes & Attribute.RDONLY)
        try:
            with self._source(reach) as (data, _, _):  # its engine's mount, so that staging is not held
                shown = self.blocks.attach(record.volume, data, size_of(reach), is_read_only=is_read_only)
            yield shown
        except BaseException:
            with suppress(UbError):  # what was wrong first is what counts
                self.blocks.release(record.volume)
            raise

    def _devices(self, volume_id: str, record: NodeRecord | None) -> frozenset[Origin]:
        """Return what mounts of a volume's devices show; nothing for volumes of other types."""
        return self.blocks.origins(volume_id) if record is None or record.is_block else frozenset()

    def _unmount(self, volume_id: str, record: NodeRecord | None, target: Path, table: Table, *, remove: bool) -> None:
        """Unmount the volume from ``target``. What was not recorded is ours if it shows what the volume would show."""
        seen = see(target, table)
        ours, dead, devices = frozenset[Origin](), frozenset[Origin](), self._devices(volume_id, record)
        if record:
            reach = self.volumes.again(volume_id, record.context)
            is_alive = not seen.mounts or self.volumes.engine(reach).is_alive(reach)
            ours, dead = frozenset({record.origin}), frozenset(record.former)
            if not is_alive:
                dead |= ours
        elif seen.mounts and not devices and self.volumes.own(volume_id):
            with self._source(self.volumes.find(volume_id, {})) as (_, origin, _):
                ours = frozenset({origin})
        is_device = remove and (record.is_block if record else bool(devices))
        for step in plan_unmount(str(target), seen, ours | devices, remove=remove, dead=dead, is_device=is_device):
            Mounter().do(step)

    def _use(self, capability: Capability, reach: Reach, *, is_read_only: bool) -> Use:
        has_devices = self.volumes.engine(reach).has_devices
        return use_for(capability, reach.context, is_read_only=is_read_only, has_devices=has_devices)

    def _attach(self, reach: Reach, record: NodeRecord, mode: AccessMode) -> None:
        """Let the owner note how this node uses the volume. The one writer among readers is that while it writes."""
        writes = record.writes or mode is not AccessMode.MULTI_NODE_SINGLE_WRITER
        self.volumes.engine(reach).attach(reach, Attachment(self.volumes.node, mode, boot_id(), writes))

    def _detach(self, reach: Reach) -> None:
        self.volumes.engine(reach).detach(reach, self.volumes.node)
        self.debts.remove(reach.volume)


def _open_staged(record: NodeRecord, staging: Path, table: Table) -> int:
    """Return a descriptor of the staged volume, after seeing that the mount there is this volume's."""
    mounted = mountinfo.at(table, staging)
    if not mounted or mounted[-1].origin != record.origin:
        raise NotStaged(f"volume {record.volume} is not mounted at {staging}: stage it again")
    return os.open(staging, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

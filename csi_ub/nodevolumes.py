"""What a node does with volumes: stage, publish, and the way back.

Every method observes, plans, writes down what is wanted, and then applies; so a driver killed at any point leaves a
state from which the same call, or the call that takes it back, goes on. One volume is worked on by one call at a
time; others of that volume wait a little.
"""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from csi_ub import mountgroup, propagation
from csi_ub.blocks import size_of
from csi_ub.engines.base import Reach
from csi_ub.locks import hold
from csi_ub.memory import handover
from csi_ub.model import AccessMode, Capability, VolumeType
from csi_ub.mounter import Mounter, canonical, see
from csi_ub.nodemounts import NodeMounts
from csi_ub.noderecord import NodeRecord, Use
from csi_ub.plan import Seen, plan_mount
from csi_ub.reasons import InUse, NotStaged
from csi_ub.steps import Bind
from csi_ub.uses import is_read_only_on, refuse_second_target, refuse_writing
from ubhost.apply import apply
from ubhost.errors import Conflict, HostFault, UbError
from ubhost.kernel import mountinfo
from ubhost.kernel.mounts import Attribute

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeVolumes(NodeMounts):
    """The volumes of node ``volumes.node``."""

    def open(self) -> None:
        """Make the folders for records and locks, and sweep out records that a killed driver did not finish."""
        for folder in (self.run, self._locks, self.inline, self.debts.folder):
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                raise HostFault(f"cannot make {folder}: {error.strerror}") from error
        for unfinished in (*self.run.glob(".*.tmp"), *self.debts.folder.glob(".*.tmp")):
            unfinished.unlink(missing_ok=True)

    def settle(self) -> None:
        """Give back volumes that this node had attached before a reboot, which nobody will unstage any more."""
        for volume_id, context in self.debts.all():
            try:
                with hold(self._locks, f"volume {volume_id}", wait_s=0):
                    if self._records.read(volume_id) is None:
                        self._detach(self.volumes.again(volume_id, context))
            except UbError as error:
                log.warning("not given back yet", extra={"volume_id": volume_id, "error": str(error)})

    def stage(self, volume_id: str, staging: str, capability: Capability, context: Mapping[str, str]) -> None:
        """Mount a volume at ``staging``; nothing happens if it is there for the same use.

        Raises:
            NotFound: no such volume.
            Conflict: staged there for another use, or something else is mounted there.
            InUse: the access mode does not allow this node beside another.
            Unsupported: the volume cannot be used like that, or nobody would see it mounted.
        """
        target = canonical(staging)
        with hold(self._locks, f"volume {volume_id}"):
            reach = self.volumes.find(volume_id, context)
            # Whoever publishes says whether pods write; where they must not, nothing can from the start.
            is_read_only = is_read_only_on(reach.context, self.volumes.node)
            use = self._use(capability, reach, is_read_only=is_read_only)
            with self._source(reach) as (source, origin, table):
                before = self._records.read(volume_id)
                record = (before or NodeRecord(volume_id, dict(reach.context), origin)).at_origin(origin)
                seen = see(target, table)
                _refuse_other(record.staged.get(str(target)), use, target, seen)
                steps = plan_mount(Bind(str(target), origin, use.attributes), seen, frozenset(record.former))
                if not steps and before == record and str(target) in record.staged:
                    return
                propagation.check(table, _existing(target), is_alone=self.is_alone)
                after = replace(record, staged={**record.staged, str(target): use})
                with self._noted(before or NodeRecord(volume_id, dict(reach.context), origin), after):
                    # With one machine nobody holds us to it after a reboot.
                    self.debts.add(volume_id, reach.context, durable=self.volumes.engine(reach).spans_machines)
                    if reach.context.get("type") != VolumeType.MODEL.value:
                        mountgroup.give(source, capability.mount_group)
                    self._attach(reach, record, capability.mode)
                    apply(steps, Mounter(source).do)

    def unstage(self, volume_id: str, staging: str) -> None:
        """Unmount a volume from ``staging``; nothing happens if it is not there. The folder stays the caller's.

        Raises:
            InUse: pods still have it, or something has files open on it.
        """
        target = canonical(staging)
        with hold(self._locks, f"volume {volume_id}"):
            record = self._records.read(volume_id)
            table = mountinfo.read_at(target, *map(Path, record.published if record else ()))
            if record and set(record.staged) <= {str(target)}:
                if published := record.still_published(table, self._devices(volume_id, record)):
                    raise InUse(f"volume {volume_id} is still published at {published[0]}")
                if record.is_block:
                    self.blocks.release(volume_id)
            self._unmount(volume_id, record, target, table, remove=False)
            if record is None:
                return
            record = replace(record, staged={path: use for path, use in record.staged.items() if path != str(target)})
            if not record.staged:
                record = replace(record, published={})
                self._detach(self.volumes.again(volume_id, record.context))
            self._records.write(record)

    def publish(
        self,
        volume_id: str,
        staging: str,
        target_path: str,
        capability: Capability,
        context: Mapping[str, str],
        *,
        readonly: bool,
    ) -> None:
        """Show a staged volume at ``target_path``; nothing happens if it is there for the same use.

        Raises:
            NotFound: no such volume.
            NotStaged: it is not mounted at ``staging``.
            Conflict: published there for another use, or something else is mounted there.
            InUse: the access mode allows one target only, and there is another.
            Unsupported: the volume cannot be used like that, or nobody would see it mounted.
        """
        target = canonical(target_path)
        with hold(self._locks, f"volume {volume_id}"):
            record = self._records.read(volume_id)
            if record is None:
                self.volumes.find(volume_id, context)
                raise NotStaged(f"volume {volume_id} is not staged on node {self.volumes.node}")
            reach, staged = self.volumes.again(volume_id, record.context), canonical(staging)
            use = self._use(capability, reach, is_read_only=readonly)
            if not use.attributes & Attribute.RDONLY:
                refuse_writing(volume_id, record.context, self.volumes.node)
            record = self._revived(record, reach, staged)
            table = mountinfo.read_at(target, staged, *map(Path, record.published))
            seen = see(target, table)
            _refuse_other(record.published.get(str(target)), use, target, seen)
            with self._shown(reach, record, staged, table, use) as shown:
                bind = Bind(str(target), shown.origin, use.attributes, is_device=record.is_block)
                steps = plan_mount(bind, seen, shown.dead)
                if not steps and str(target) in record.published:
                    return
                published = record.still_published(table, self._devices(volume_id, record))
                refuse_second_target(record, use, str(target), published)
                propagation.check(table, _existing(target), is_alone=self.is_alone)
                source = shown.open()
                after = replace(record, published={**record.published, str(target): use})
                try:
                    with self._noted(record, after):
                        if use.mode is AccessMode.MULTI_NODE_SINGLE_WRITER:
                            self._attach(reach, after, use.mode)
                        self._hand_over(reach, context, target, use)  # a repeated call that finds it mounted is content
                        apply(steps, Mounter(source).do)
                finally:
                    os.close(source)

    def unpublish(self, volume_id: str, target_path: str) -> None:
        """Unmount a volume from ``target_path`` and remove the mount point; nothing happens if it is not there.

        Raises:
            InUse: something has files open on it, or the path is neither our mount nor empty.
        """
        target = canonical(target_path)
        with hold(self._locks, f"volume {volume_id}"):
            record = self._records.read(volume_id)
            self._unmount(volume_id, record, target, mountinfo.read_at(target), remove=True)
            if self._devices(volume_id, record) or (record and record.is_block):
                self.blocks.release(volume_id)
            if pod := handover.pod_of({}, str(target)):
                handover.remove(self.run, pod, volume_id)
            if record and str(target) in record.published:
                rest = {path: use for path, use in record.published.items() if path != str(target)}
                after = replace(record, published=rest)
                self._records.write(after)
                mode = record.published[str(target)].mode
                if mode is AccessMode.MULTI_NODE_SINGLE_WRITER and record.writes and not after.writes:
                    with suppress(UbError):  # the owner hears of it at the latest when the volume is unstaged
                        self._attach(self.volumes.again(volume_id, record.context), after, mode)

    def grow(self, volume_id: str) -> int | None:
        """Let the devices of a staged volume have the size that its owner says; ``None`` if it is no block volume.

        Raises:
            NotFound: no such volume.
        """
        with hold(self._locks, f"volume {volume_id}"):
            record = self._records.read(volume_id)
            if record is None or not record.is_block:
                return None
            reach = self.volumes.find(volume_id, record.context)
            size = size_of(reach)
            with self._source(reach) as (source, _, _):
                self.blocks.grow(volume_id, source, size)
            self._records.write(replace(record, context={**record.context, "size": str(size)}))
            return size

    def _hand_over(self, reach: Reach, context: Mapping[str, str], target: Path, use: Use) -> None:
        """Let nri-qos know which device nodes of a memory volume the pod must be able to open."""
        pod = handover.pod_of(context, str(target))
        if pod and (nodes := self.volumes.engine(reach).devices(reach)):
            is_read_only = bool(use.attributes & Attribute.RDONLY)
            handover.write(self.run, pod, reach.volume, nodes, is_read_only=is_read_only)


def _existing(path: Path) -> Path:
    """Return the nearest folder above ``path`` that exists."""
    return next(each for each in path.parents if each.exists())


def _refuse_other(recorded: Use | None, use: Use, target: Path, seen: Seen) -> None:
    """Refuse a repeated call with other arguments. A mount without a record is judged by the mount table alone."""
    if seen.mounts and recorded is not None and recorded != use:
        raise Conflict(f"{target} is in use as {recorded}, not as {use}")

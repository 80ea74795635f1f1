"""What a node does with volumes: stage, publish, and the way back.

Every method observes, plans, writes down what is wanted, and then applies; so a driver killed at any point leaves a
state from which the same call, or the call that takes it back, goes on. One volume is worked on by one call at a
time; others of that volume wait a little.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from csi_ub.bounded import Bounded
from csi_ub.engines.base import Engine
from csi_ub.errors import InUse, NotStaged
from csi_ub.locks import hold
from csi_ub.model import Attachment, Capability, Volume
from csi_ub.mounter import Mounter, canonical, see
from csi_ub.mountflags import attributes
from csi_ub.noderecord import NodeRecord, NodeRecords, Use
from csi_ub.plan import plan_mount, plan_unmount
from csi_ub.pool import Pool, boot_id
from csi_ub.pools.base import Usage
from csi_ub.steps import Bind
from csi_ub.volumes import Volumes, attached_pool
from ubhost.apply import apply
from ubhost.errors import Conflict, HostFault, NotFound, UbError, Unsupported
from ubhost.kernel import mountinfo
from ubhost.kernel.mountinfo import Origin

_STATS_S = 3.0  # kubelet asks every minute for every volume; a hung one must not hold it up


@dataclass(frozen=True, slots=True)
class Stats:
    """What a volume uses; ``None`` is unknown. ``fault`` says what is wrong, if something is."""

    bytes: Usage | None
    inodes: Usage | None
    fault: str | None


@dataclass(frozen=True, slots=True)
class NodeVolumes:
    """The volumes of node ``volumes.node``; ``run`` is the folder for its records and locks."""

    volumes: Volumes
    engine: Engine
    run: Path
    bounded: Bounded = field(default_factory=Bounded)

    def open(self) -> None:
        """Make the folders for records and locks, and sweep out records that a killed driver did not finish."""
        for folder in (self.run, self._locks):
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                raise HostFault(f"cannot make {folder}: {error.strerror}") from error
        for unfinished in self.run.glob(".*.tmp"):
            unfinished.unlink(missing_ok=True)

    def stage(self, volume_id: str, staging: str, capability: Capability, context: Mapping[str, str]) -> None:
        """Mount a volume at ``staging``; nothing happens if it is there for the same use.

        Raises:
            NotFound: no such volume.
            Conflict: staged there for another use, or something else is mounted there.
            InUse: the access mode does not allow this node beside another.
            Unsupported: the volume cannot be used like that.
        """
        _refuse_block(capability)
        use = Use(capability.mode, attributes(capability, is_read_only=False), capability.mount_group)
        target = canonical(staging)
        with hold(self._locks, f"volume {volume_id}"):
            volume, pool = self.volumes.find(volume_id, context)
            with self._source(lambda: self.engine.stage(volume, pool)) as (source, origin):
                record = self._records.read(volume_id) or NodeRecord(volume_id, str(pool.path), origin)
                seen = see(target)
                if seen.mounts:
                    _refuse_other_use(record.staged.get(str(target)), use, target)
                steps = plan_mount(Bind(str(target), origin, use.attributes), seen)
                staged = {**record.staged, str(target): use}
                with self._noted(record, replace(record, origin=origin, pool=str(pool.path), staged=staged)):
                    _give_to_group(source, capability.mount_group)
                    self.engine.attach(volume, pool, Attachment(self.volumes.node, capability.mode, boot_id()))
                    apply(steps, Mounter(source).do)

    def unstage(self, volume_id: str, staging: str) -> None:
        """Unmount a volume from ``staging``; nothing happens if it is not there. The folder stays the caller's.

        Raises:
            InUse: pods still have it, or something has files open on it.
        """
        target = canonical(staging)
        with hold(self._locks, f"volume {volume_id}"):
            record = self._records.read(volume_id)
            seen = see(target)
            if record and set(record.staged) <= {str(target)} and self._still_published(record):
                raise InUse(f"volume {volume_id} is still published at {self._still_published(record)[0]}")
            for step in plan_unmount(str(target), seen, self._ours(volume_id, record), remove=False):
                Mounter().do(step)
            if record is None:
                return
            staged = {path: use for path, use in record.staged.items() if path != str(target)}
            record = replace(record, staged=staged, published=record.published if staged else {})
            if not record.staged:
                self.engine.detach(volume_id, attached_pool(record.pool), self.volumes.node)
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
        """
        _refuse_block(capability)
        use = Use(capability.mode, attributes(capability, is_read_only=readonly), capability.mount_group)
        target = canonical(target_path)
        with hold(self._locks, f"volume {volume_id}"):
            record = self._records.read(volume_id)
            if record is None:
                self.volumes.find(volume_id, context)
                raise NotStaged(f"volume {volume_id} is not staged on node {self.volumes.node}")
            seen = see(target)
            if seen.mounts:
                _refuse_other_use(record.published.get(str(target)), use, target)
            steps = plan_mount(Bind(str(target), record.origin, use.attributes), seen)
            if not steps and str(target) in record.published:
                return
            self._refuse_second_target(record, use, target)
            after = replace(record, published={**record.published, str(target): use})
            source = self._source(lambda: _open_staged(record, canonical(staging)))
            with source as (descriptor, _), self._noted(record, after):
                apply(steps, Mounter(descriptor).do)

    def unpublish(self, volume_id: str, target_path: str) -> None:
        """Unmount a volume from ``target_path`` and remove the mount point; nothing happens if it is not there.

        Raises:
            InUse: something has files open on it, or the path is neither our mount nor empty.
        """
        target = canonical(target_path)
        with hold(self._locks, f"volume {volume_id}"):
            record = self._records.read(volume_id)
            for step in plan_unmount(str(target), see(target), self._ours(volume_id, record), remove=True):
                Mounter().do(step)
            if record and str(target) in record.published:
                rest = {path: use for path, use in record.published.items() if path != str(target)}
                self._records.write(replace(record, published=rest))

    def stats(self, volume_id: str, path: str) -> Stats:
        """Return what a volume that is mounted at ``path`` uses, and what is wrong with it; never hangs.

        Raises:
            NotFound: the volume is not mounted there.
        """
        record = self._mounted(volume_id, path)
        try:
            return self.bounded.run(f"volume {volume_id}", lambda: self._stats(record), _STATS_S)
        except NotFound:
            return Stats(None, None, f"the pool of volume {volume_id} has it no more")
        except UbError as error:
            return Stats(None, None, str(error))

    def size(self, volume_id: str, path: str) -> int:
        """Return the bytes of a volume that is mounted at ``path``.

        Raises:
            NotFound: the volume is not mounted there, or does not exist.
        """
        volume, _ = self._recorded(self._mounted(volume_id, path))
        return volume.size

    def _mounted(self, volume_id: str, path: str) -> NodeRecord:
        record = self._records.read(volume_id)
        target = canonical(path) if path.startswith("/") else Path(path)
        mounted = see(target).mounts if record else ()
        if record is None or not mounted or mounted[-1].origin != record.origin:
            raise NotFound(f"volume {volume_id} is not mounted at {path}")
        return record

    def _recorded(self, record: NodeRecord) -> tuple[Volume, Pool]:
        pool = attached_pool(record.pool)
        volume = pool.volumes.find(record.volume)
        if volume is None:
            raise NotFound(f"volume {record.volume} does not exist in {record.pool}")
        return volume, pool

    def _stats(self, record: NodeRecord) -> Stats:
        volume, pool = self._recorded(record)
        self.engine.verify(volume, pool)
        with pool.share(volume.id) as share:
            files = os.statvfs(share.path)
        inodes = Usage(files.f_files - files.f_ffree, files.f_files) if files.f_files else None
        return Stats(pool.usage(volume), inodes, None)

    @property
    def _locks(self) -> Path:
        return self.run / "locks"

    @property
    def _records(self) -> NodeRecords:
        return NodeRecords(self.run)

    @contextmanager
    def _noted(self, before: NodeRecord, after: NodeRecord) -> Iterator[None]:
        """Write down what is wanted before it is done; take the note back if it cannot be done."""
        self._records.write(after)
        try:
            yield
        except BaseException:
            self._records.write(before)
            raise

    @contextmanager
    def _source(self, open_source: Callable[[], int]) -> Iterator[tuple[int, Origin]]:
        """Open the folder to bind, and tell what its mounts will show."""
        source = open_source()
        try:
            yield source, mountinfo.origin(mountinfo.read(), source)
        finally:
            os.close(source)

    def _ours(self, volume_id: str, record: NodeRecord | None) -> frozenset[Origin]:
        """Return what mounts of the volume show; without a record, what they would show if the volume is here."""
        if record:
            return frozenset({record.origin})
        found = self.volumes.own(volume_id)
        if not found:
            return frozenset()
        with self._source(lambda: self.engine.stage(*found)) as (_, origin):
            return frozenset({origin})

    def _still_published(self, record: NodeRecord) -> list[str]:
        mounted = {mount.target for mount in mountinfo.read() if mount.origin == record.origin}
        return sorted(mounted & set(record.published))

    def _refuse_second_target(self, record: NodeRecord, use: Use, target: Path) -> None:
        for other in self._still_published(record):
            if other != str(target) and (use.mode.is_single_target or record.published[other].mode.is_single_target):
                raise InUse(f"volume {record.volume} is published at {other} as {record.published[other].mode.name}")


def _give_to_group(folder: int, group: int | None) -> None:
    """Let members of ``group`` write, now and in what is made later. The top folder only: a walk takes minutes."""
    if group is None:
        return
    path, state = f"/proc/self/fd/{folder}", os.fstat(folder)
    mode = stat.S_IMODE(state.st_mode) | stat.S_ISGID | stat.S_IRWXG
    try:
        if state.st_gid != group:
            os.chown(path, -1, group)
        if stat.S_IMODE(os.fstat(folder).st_mode) != mode:
            Path(path).chmod(mode)
    except OSError as error:
        raise HostFault(f"cannot give the volume to group {group}: {error.strerror}") from error


def _open_staged(record: NodeRecord, staging: Path) -> int:
    """Return a descriptor of the staged volume, after seeing that the mount there is this volume's."""
    mounted = see(staging).mounts
    if not mounted or mounted[-1].origin != record.origin:
        raise NotStaged(f"volume {record.volume} is not mounted at {staging}: stage it again")
    return os.open(staging, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _refuse_other_use(recorded: Use | None, use: Use, target: Path) -> None:
    """Refuse a repeated call with other arguments. A mount without a record is judged by the mount table alone."""
    if recorded is not None and recorded != use:
        raise Conflict(f"{target} is in use as {recorded.mode.name}, {recorded.attributes!r}, not as asked for")


def _refuse_block(capability: Capability) -> None:
    if capability.is_block:
        raise Unsupported("a volume of type filesystem has no block device")

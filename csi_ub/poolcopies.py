"""What the shares of a pool are made from: nothing, or copies of one another.

Beside the ``share`` of a new volume that several nodes are to keep lies its ``seed``, a copy of what it is made from,
until its engine has brought that to all of them.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from csi_ub import disk
from csi_ub.model import Group, Replica, Snapshot, Source, Volume, VolumeType
from csi_ub.pools.base import doing
from csi_ub.pools.copy import remove_tree
from csi_ub.poolshares import PoolShares
from csi_ub.reasons import InUse
from ubhost.errors import NotFound
from ubhost.kernel import flush


@dataclass(frozen=True, slots=True)
class PoolCopies(PoolShares):
    def seed(self, volume_id: str) -> Path:
        """Return where the seed of a volume is, if it still has one: a copy of the share that it is made from."""
        seed = self.volumes.home / volume_id / "seed"
        self.space.bring(seed)
        return seed

    def empty(self, volume: Volume) -> None:
        """Make the share of a new volume as it was at first, whatever was tried with it since."""
        share = self.volumes.home / volume.id / "share"
        self.space.remove(share)
        self._make(share, self.room(volume), 0o777)

    def drop_seed(self, volume_id: str) -> None:
        """Remove the seed of a volume that has its content; it may be gone."""
        self.space.remove(self.volumes.home / volume_id / "seed")

    def find_snapshot(self, snapshot_id: str) -> Snapshot | None:
        """Return the record of a snapshot, taken alone or in a group."""
        return self.snapshots.find(snapshot_id) or next((s for s in self._members() if s.id == snapshot_id), None)

    def all_snapshots(self) -> Iterator[Snapshot]:
        """Yield every snapshot, in no order."""
        yield from self.snapshots.all()
        yield from self._members()

    def _fill(self, share: Path, volume: Volume) -> None:
        place = share.with_name("seed") if volume.is_sown else share
        if volume.source:
            self._copy_source(volume.source, place, 0 if volume.is_sown else self.room(volume))
            self.space.bring(place)
            for who_uses_it in ("nodes", "beats", "whole"):
                remove_tree(place / who_uses_it)
            (place / "nodes").mkdir(mode=0o700)
        else:
            # Any user of a pod may write; the pool itself is closed to all but root. Models come by `ubnode model`.
            self._make(place, self.room(volume), 0o755 if volume.spec.type is VolumeType.MODEL else 0o777)
        if volume.spec.type is VolumeType.MODEL:
            (place / "data" / "versions").mkdir(mode=0o755, exist_ok=True)
        if volume.is_block:
            if volume.source:
                disk.check(place, volume.source.id)
            disk.make(place / "data", volume.size)
        if volume.is_sown:
            self._make(share, self.room(volume), 0o777)
        for each in {share, place}:
            self._settle(each)

    def _fill_replica(self, share: Path, replica: Replica) -> None:
        self._make(share, replica.size, 0o777)
        self._settle(share)

    def _copy_source(self, source: Source, share: Path, size: int) -> None:
        if source.is_snapshot:
            with self._snapshot_share(source.id) as original:
                self.space.copy(original, share, size)
        else:
            self._copy_volume(source.id, share, size)

    def _make(self, share: Path, size: int, mode: int) -> None:
        self.space.make(share, size)
        (share / "data").mkdir()
        (share / "data").chmod(mode)
        (share / "nodes").mkdir(mode=0o700)

    def _settle(self, share: Path) -> None:
        """Bring a new share to the disk before its record says that it is there."""
        if self.space.has_mounts:  # else it gets there with the record, which is of the same file system
            with doing("flush", share):
                flush.file_system(share)

    def _members(self) -> Iterator[Snapshot]:
        for group in self.groups.all():
            yield from group.members

    @contextmanager
    def _snapshot_share(self, snapshot_id: str) -> Iterator[Path]:
        """Give the bytes of a snapshot, which stays while the body runs."""
        found = self.find_snapshot(snapshot_id)
        shelf, id_ = (self.groups, found.group) if found and found.group else (self.snapshots, snapshot_id)
        with shelf.lock(id_):
            share = shelf.home / id_ / "share"
            original = share / snapshot_id if found and found.group else share
            if not original.is_dir():
                raise NotFound(f"snapshot {snapshot_id} does not exist in pool {self.name!r}")
            yield original

    def _copy_together(self, share: Path, group: Group) -> None:
        share.mkdir(mode=0o700)
        with ExitStack() as locks:
            for member in sorted(group.members, key=lambda each: each.volume):  # one order for all
                locks.enter_context(self.volumes.lock(member.volume))
            written = [each.volume for each in group.members if self._writers(each.volume)]
            # Nobody can attach one now. Where at most one is written to, the others were the same at its moment.
            if len(written) > (1 if self.space.is_atomic else 0):
                raise InUse(
                    f"volumes {', '.join(written)} are in use by writers: their snapshots would not be of one moment. "
                    "Stop the pods of all but one (pools of type btrfs and lvm), or of all"
                )
            for member in group.members:
                self._copy_now(member.volume, share / member.id, 0)

    def _writers(self, volume_id: str) -> list[str]:
        return [each.node for each in self.users(volume_id) if each.claim.writes]

    def _copy_volume(self, volume_id: str, share: Path, size: int) -> None:
        with self.volumes.lock(volume_id):
            if not self.space.is_atomic and (writers := self._writers(volume_id)):
                raise InUse(
                    f"volume {volume_id} is in use on node {', '.join(writers)}, and pool {self.name!r} cannot "
                    "copy it at one moment: stop its pods, or use a pool of type btrfs or lvm"
                )
            self._copy_now(volume_id, share, size)

    def _copy_now(self, volume_id: str, share: Path, size: int) -> None:
        self.space.copy(self.at(volume_id), share, size)

"""One pool: its volumes, its snapshots, and which nodes use them.

Beside the ``share`` of a new volume that several nodes are to keep lies its ``seed``, a copy of what it is made from,
until its engine has brought that to all of them.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from csi_ub import disk
from csi_ub.model import Attachment, Group, Replica, Snapshot, Source, Volume, VolumeType
from csi_ub.pools.base import Space, Usage
from csi_ub.pools.copy import remove_tree
from csi_ub.reasons import InUse, OutOfRange
from csi_ub.share import Share, boot_id
from csi_ub.shelf import Shelf
from ubhost.errors import Exhausted, HostFault, NotFound
from ubhost.kernel import mountinfo
from ubhost.kernel.beneath import open_beneath


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool directory."""

    name: str
    path: Path
    space: Space

    @property
    def volumes(self) -> Shelf[Volume]:
        return Shelf(self.path, "volume", "ub", Volume, self._remove_volume)

    @property
    def snapshots(self) -> Shelf[Snapshot]:
        return Shelf(self.path, "snapshot", "us", Snapshot, self.space.remove)

    @property
    def groups(self) -> Shelf[Group]:
        return Shelf(self.path, "group", "ug", Group, self._remove_members)

    @property
    def replicas(self) -> Shelf[Replica]:
        return Shelf(self.path, "replica", "ur", Replica, self.space.remove)

    def open(self) -> None:
        """Make the folders of the pool and sweep out what killed drivers left.

        Raises:
            HostFault: the pool directory is missing or cannot be written.
            Unsupported: its file system cannot do what this kind of pool needs.
        """
        if not self.path.is_dir():
            raise HostFault(f"pool {self.name!r} has no directory {self.path}")
        self.space.check(self.path)
        self.volumes.open()
        self.snapshots.open()
        self.groups.open()
        self.replicas.open()

    def check(self) -> None:
        """Raise ``HostFault`` if the pool directory has gone; touches no volume."""
        if not self.volumes.home.is_dir():
            raise HostFault(f"pool {self.name!r} has no directory {self.volumes.home}")

    def refuse_too_large(self, size: int) -> None:
        """Raise ``Exhausted`` if the pool has not ``size`` bytes left: another node may have."""
        if size > (left := self.space.available(self.path)):
            raise Exhausted(f"pool {self.name!r} has {left} bytes left, not {size}")

    def create(self, want: Volume) -> Volume:
        """Make a volume; see ``Shelf.create``.

        Raises:
            NotFound: the snapshot or volume to make it from has gone.
            Exhausted: no space for its content.
        """
        return self.volumes.create(want, self._fill)

    def delete(self, volume_id: str, retire: Callable[[Volume], None], prepare: Callable[[Volume], object]) -> None:
        """Remove a volume and all its bytes; nothing happens if there is none of this id.

        ``retire`` makes it unreachable; should somebody have attached it just before, ``prepare`` takes that back.

        Raises:
            InUse: a node has it attached, or something is mounted inside it; the volume is untouched.
        """

        def refuse(volume: Volume) -> None:
            self.refuse_in_use(volume)
            retire(volume)
            try:
                self.refuse_in_use(volume)
            except InUse:
                prepare(volume)
                raise

        self.volumes.delete(volume_id, refuse)

    def snapshot(self, want: Snapshot) -> Snapshot:
        """Make a snapshot of volume ``want.volume``; see ``Shelf.create``.

        Raises:
            NotFound: the volume has gone.
            InUse: a node may write to the volume, and this kind of pool cannot copy it at one moment.
        """
        return self.snapshots.create(want, lambda share, it: self._copy_volume(it.volume, share, 0))

    def snapshot_together(self, want: Group) -> Group:
        """Make snapshots of several volumes, which show them at one moment: all of them or none.

        Raises:
            NotFound: a volume has gone.
            InUse: nodes may write to several of them, or to one that cannot be copied at one moment.
        """
        return self.groups.create(want, self._copy_together)

    def find_snapshot(self, snapshot_id: str) -> Snapshot | None:
        """Return the record of a snapshot, taken alone or in a group."""
        return self.snapshots.find(snapshot_id) or next((s for s in self._members() if s.id == snapshot_id), None)

    def all_snapshots(self) -> Iterator[Snapshot]:
        """Yield every snapshot, in no order."""
        yield from self.snapshots.all()
        yield from self._members()

    def keep(self, want: Replica) -> Replica:
        """Make the bytes of another node's volume, empty, or let them grow to ``want.size``; return the record.

        Raises:
            Exhausted: no space for them.
        """

        def change(known: Replica) -> Replica:
            if want.size > known.size:
                self.space.resize(self.replicas.home / known.id / "share", want.size)
            sites = want.sites or known.sites
            return replace(known, size=max(known.size, want.size), sites=sites, fenced=want.fenced)

        with self.replicas.name_lock(want.name):
            if self.replicas.find(want.id) is None:
                self.replicas.create(want, lambda share, it: self._make(share, it.size, 0o777))
        return self.replicas.update(want.id, change)

    def seed(self, volume_id: str) -> Path:
        """Return where the seed of a volume is, if it still has one: a copy of the share that it is made from."""
        return self.volumes.home / volume_id / "seed"

    def empty(self, volume: Volume) -> None:
        """Make the share of a new volume as it was at first, whatever was tried with it since."""
        share = self.volumes.home / volume.id / "share"
        self.space.remove(share)
        self._make(share, volume.quota, 0o777)

    def drop_seed(self, volume_id: str) -> None:
        """Remove the seed of a volume that has its content; it may be gone."""
        if self.seed(volume_id).exists():
            self.space.remove(self.seed(volume_id))

    def grow(self, volume_id: str, size: int) -> Volume:
        """Let a volume have at least ``size`` bytes; pods see it at once.

        Raises:
            NotFound: no such volume.
            OutOfRange: the pool has not so many left.
        """

        def change(volume: Volume) -> Volume:
            wanted = disk.rounded(size, 0) if volume.is_block else size
            if volume.size >= wanted:
                return volume
            left = self.space.available(self.path)
            if wanted - volume.size > left:
                raise OutOfRange(
                    f"volume {volume_id} of {volume.size} bytes cannot have {wanted}: its pool has {left} left"
                )
            if volume.quota:
                self.space.resize(self.volumes.home / volume_id / "share", wanted)
            return replace(volume, size=wanted)

        return self.volumes.update(volume_id, change)

    def usage(self, volume: Volume) -> Usage:
        return self.space.usage(self.volumes.home / volume.id / "share", volume.quota)

    @contextmanager
    def share(self, volume_id: str) -> Iterator["Share"]:
        """Open the share of a volume.

        Raises:
            NotFound: there is no such volume, or its share has gone.
        """
        with self.volumes.folder(volume_id) as folder:
            try:
                share = open_beneath(folder, "share", os.O_PATH | os.O_DIRECTORY)
            except OSError:
                raise NotFound(f"volume {volume_id} has no share in pool {self.name!r} at {self.path}") from None
            try:
                yield Share(volume_id, Path(f"/proc/self/fd/{share}"), share, self.path / "locks")
            finally:
                os.close(share)

    def users(self, volume_id: str) -> tuple[Attachment, ...]:
        """Return the nodes that use a volume; those of an earlier boot of the only machine do so no longer.

        Raises:
            NotFound: no such volume.
        """
        volume, boot = self.volumes.find(volume_id), boot_id()
        is_one_machine = volume is None or volume.engine == "bind"
        with self.share(volume_id) as share:
            return tuple(each for each in share.attachments() if each.boot == boot or not is_one_machine)

    def _fill(self, share: Path, volume: Volume) -> None:
        place = share.with_name("seed") if volume.is_sown else share
        if volume.source:
            self._copy_source(volume.source, place, 0 if volume.is_sown else volume.quota)
            (place / "nodes").mkdir(mode=0o700, exist_ok=True)
        else:
            # Any user of a pod may write; the pool itself is closed to all but root. Models come by `ubnode model`.
            self._make(place, volume.quota, 0o755 if volume.spec.type is VolumeType.MODEL else 0o777)
        if volume.spec.type is VolumeType.MODEL:
            (place / "data" / "versions").mkdir(mode=0o755, exist_ok=True)
        if volume.is_block:
            if volume.source:
                disk.check(place, volume.source.id)
            disk.make(place / "data", volume.size)
        if volume.is_sown:
            self._make(share, volume.quota, 0o777)

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

    def _members(self) -> Iterator[Snapshot]:
        for group in self.groups.all():
            yield from group.members

    def _remove_volume(self, share: Path) -> None:
        self.space.remove(share.with_name("seed"))
        self.space.remove(share)

    def _remove_members(self, share: Path) -> None:
        if share.is_dir():
            for member in share.iterdir():
                self.space.remove(member)
        remove_tree(share)

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
                    "Stop the pods of all but one (pools of type btrfs), or of all"
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
                    "copy it at one moment: stop its pods, or use a pool of type btrfs"
                )
            self._copy_now(volume_id, share, size)

    def _copy_now(self, volume_id: str, share: Path, size: int) -> None:
        self.space.copy(self.volumes.home / volume_id / "share", share, size)
        for who_uses_it in ("nodes", "beats", "whole"):
            remove_tree(share / who_uses_it)

    def refuse_in_use(self, volume: Volume) -> None:
        """Raise ``InUse`` if the cluster lets a node use a volume, or a node has it, or something is mounted in it."""
        if volume.publications:
            raise InUse(f"volume {volume.id} is published to node {volume.publications[0].node}")
        nodes = [each.node for each in self.users(volume.id)]
        if nodes:
            raise InUse(f"volume {volume.id} is in use on node {', '.join(nodes)}")
        inside = mountinfo.below(mountinfo.read(), (self.volumes.home / volume.id).resolve())
        if inside:
            raise InUse(f"volume {volume.id} has {inside[0].target} mounted inside it")

"""One pool: what is made, changed and removed in it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from csi_ub import disk
from csi_ub.model import Group, Replica, Snapshot, Volume
from csi_ub.poolcopies import PoolCopies
from csi_ub.pools.base import Usage
from csi_ub.reasons import InUse, OutOfRange
from ubhost.errors import Exhausted, HostFault


@dataclass(frozen=True, slots=True)
class Pool(PoolCopies):
    """One pool directory."""

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

    def keep(self, want: Replica) -> Replica:
        """Make the bytes of another node's volume, empty, or let them grow to ``want.size``; return the record.

        Raises:
            Exhausted: no space for them.
        """

        def change(known: Replica) -> Replica:
            if want.size > known.size:
                self.space.resize(self.replica_at(known), want.size)
            sites = want.sites or known.sites
            return replace(known, size=max(known.size, want.size), sites=sites, fenced=want.fenced)

        with self.replicas.name_lock(want.name):
            if self.replicas.find(want.id) is None:
                self.replicas.create(want, self._fill_replica)
        return self.replicas.update(want.id, change)

    def rounded(self, volume: Volume, size: int, limit: int) -> int:
        """Return the bytes that a volume of ``size`` bytes (0: not said) gets, at most ``limit`` (0: none).

        Raises:
            OutOfRange: none of the sizes that can be had is in that range.
        """
        return disk.rounded(size, limit) if volume.is_block else self.space.rounded(size, limit)

    def grow(self, volume_id: str, size: int) -> Volume:
        """Let a volume have at least ``size`` bytes; pods see it at once.

        Raises:
            NotFound: no such volume.
            OutOfRange: the pool has not so many left.
        """

        def change(volume: Volume) -> Volume:
            wanted = self.rounded(volume, size, 0)
            if volume.size >= wanted:
                return volume
            left = self.space.available(self.path)
            if wanted - volume.size > left:
                raise OutOfRange(
                    f"volume {volume_id} of {volume.size} bytes cannot have {wanted}: its pool has {left} left"
                )
            after = replace(volume, size=wanted)
            if room := self.room(after):
                self.space.resize(self.at(volume_id), room)
            return after

        return self.volumes.update(volume_id, change)

    def usage(self, volume: Volume) -> Usage:
        return self.space.usage(self.at(volume.id), volume.quota)

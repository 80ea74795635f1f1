"""Where a pool has the shares of its volumes, and which nodes use them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from csi_ub.model import Attachment, Group, Replica, Snapshot, Volume
from csi_ub.pools.base import Space
from csi_ub.pools.copy import remove_tree
from csi_ub.reasons import InUse, Unreachable
from csi_ub.share import Share, boot_id
from csi_ub.shelf import Shelf
from ubhost.errors import NotFound
from ubhost.kernel import mountinfo
from ubhost.kernel.beneath import open_beneath


@dataclass(frozen=True, slots=True)
class PoolShares:
    """One pool directory, and the space that shares are made of."""

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

    def at(self, volume_id: str) -> Path:
        """Return the share of a volume of ours, with its bytes brought there.

        Raises:
            NotFound: they have gone.
        """
        share = self.volumes.home / volume_id / "share"
        self.space.bring(share)
        return share

    def replica_at(self, replica: Replica) -> Path:
        """Return the share of a replica; see ``at``."""
        share = self.replicas.home / replica.id / "share"
        self.space.bring(share)
        return share

    def room(self, volume: Volume) -> int:
        """Return the bytes that a volume's share is held to; 0 if to none."""
        return self.space.room_for_device(volume.size) if volume.is_block else volume.size

    @contextmanager
    def share(self, volume_id: str) -> Iterator[Share]:
        """Open the share of a volume.

        Raises:
            NotFound: there is no such volume, or its share has gone.
        """
        with self.volumes.folder(volume_id) as folder:
            self.at(volume_id)
            try:
                share = open_beneath(folder, "share", os.O_PATH | os.O_DIRECTORY)
            except OSError:
                raise NotFound(f"volume {volume_id} has no share in pool {self.name!r} at {self.path}") from None
            try:
                yield Share(volume_id, Path(f"/proc/self/fd/{share}"), share, self.path / "locks")
            finally:
                os.close(share)

    def attach(self, share: Share, attachment: Attachment, engine: str) -> None:
        """Note that a node uses a volume, which ``engine`` brought there; see ``Share.attach``.

        Raises:
            Unreachable: another engine has taken the volume over meanwhile, as if it had never been brought.
        """
        share.attach(attachment)
        # From here on nobody switches it. Whoever did so just before has left a record that says so.
        volume = self.volumes.find(share.volume)
        if volume is None or volume.engine != engine:
            share.detach(attachment.node)
            raise Unreachable(f"volume {share.volume} was switched to another engine just now: stage it again")

    def users(self, volume_id: str) -> tuple[Attachment, ...]:
        """Return the nodes that use a volume; those of an earlier boot of the only machine do so no longer.

        Raises:
            NotFound: no such volume.
        """
        volume, boot = self.volumes.find(volume_id), boot_id()
        is_one_machine = volume is None or volume.engine == "bind"
        with self.share(volume_id) as share:
            return tuple(each for each in share.attachments() if each.boot == boot or not is_one_machine)

    def refuse_in_use(self, volume: Volume) -> None:
        """Raise ``InUse`` if the cluster lets a node use a volume, or a node has it, or something is mounted in it."""
        if volume.publications:
            raise InUse(f"volume {volume.id} is published to node {volume.publications[0].node}")
        nodes = [each.node for each in self.users(volume.id)]
        if nodes:
            raise InUse(f"volume {volume.id} is in use on node {', '.join(nodes)}")
        folder = (self.volumes.home / volume.id).resolve()
        own = {str(folder / name) for name in ("share", "seed")} if self.space.has_mounts else set[str]()
        inside = [each.target for each in mountinfo.below(mountinfo.read(), folder) if each.target not in own]
        if inside:
            raise InUse(f"volume {volume.id} has {inside[0]} mounted inside it")

    def _remove_volume(self, share: Path) -> None:
        self.space.remove(share.with_name("seed"))
        self.space.remove(share)

    def _remove_members(self, share: Path) -> None:
        if share.is_dir():
            for member in share.iterdir():
                self.space.remove(member)
        remove_tree(share)

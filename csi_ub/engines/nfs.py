"""The engine for close-to-open: NFSv4.2 from the owner's kernel to the kernel of each node, the owner's too.

What a program wrote and closed is read by whoever opens the file afterwards, on any node; between open and close a
node may believe what it read before. That is less than strong, whatever options a mount is given (reference/csi.md
section 4.4), and is never called so. Locks, flock and fcntl alike, hold across nodes; that is why the owner's pods come
through NFS too: on the owner's own file system an flock(2) would be nobody else's business. MAP_SHARED works.

Who uses a volume the owner notes; the others ask its driver to. A node that is lost cannot be shut out.
"""

import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from csi_ub.engines.base import Engine, Reach, volume_context
from csi_ub.engines.exports import PORT, Exports
from csi_ub.engines.nfsmounts import NfsMounts, Served
from csi_ub.engines.noted import Noted
from csi_ub.model import Attachment, Volume
from csi_ub.peers.channel import Peers, Verb
from csi_ub.pool import Pool
from csi_ub.pools.base import Usage
from csi_ub.reasons import Unreachable
from ubhost.errors import HostFault, NotFound, UbError, Unsupported

_ASK_S = 3.0


@dataclass(frozen=True, slots=True)
class NfsEngine(Engine):
    """``pools`` are those of this node, for the calls of others."""

    pools: tuple[Pool, ...]
    exports: Exports
    mounts: NfsMounts
    peers: Peers

    name = "nfs"
    spans_machines = True

    def check(self, replicas: int = 1) -> None:
        if replicas > 1:
            raise Unsupported("a volume over NFS is there once: replicas: 3 is for engine glusterfs")
        self.mounts.check()
        self.exports.check()

    @property
    def noted(self) -> Noted:
        return Noted(self.name, self.pools, self.peers)

    def verbs(self) -> Mapping[str, Verb]:
        return self.noted.verbs()

    def prepare(self, volume: Volume, pool: Pool) -> Volume:
        if pool.space.bring(pool.volumes.home / volume.id / "share"):
            self.exports.remove(_data(pool.path, volume.id), _number(volume.id))  # the server may have found nothing
        hosts = {self.peers.address or "127.0.0.1", *self.peers.hosts.values()}
        self.exports.ensure(_data(pool.path, volume.id), _number(volume.id), hosts)
        return volume

    def look_after(self, volume: Volume, pool: Pool) -> None:
        self.prepare(volume, pool)

    def context(self, volume: Volume, pool: Pool) -> Mapping[str, str]:
        return {**volume_context(self.name, volume), "port": str(PORT), "served": str(pool.path)}

    def fence(self, volume: Volume, pool: Pool) -> None:
        if volume.fenced:
            raise Unsupported(f"volume {volume.id} is served over NFS: node {volume.fenced[-1]} can only let go itself")

    def retire(self, volume: Volume, pool: Pool) -> None:
        self.exports.remove(_data(pool.path, volume.id), _number(volume.id))
        self.mounts.drop(volume.id)

    def stage(self, reach: Reach) -> int:
        return self.mounts.bring(reach.volume, self._served(reach))

    def attach(self, reach: Reach, attachment: Attachment) -> None:
        self.noted.attach(reach, attachment)

    def verify(self, reach: Reach) -> None:
        if reach.pool and not self.exports.is_serving():
            raise HostFault(f"the NFS server of node {reach.owner} does not run: volume {reach.volume} is not served")
        if self.mounts.is_mounted(reach.volume) and not self.mounts.answers(reach.volume):
            raise Unreachable(f"volume {reach.volume} of node {reach.owner} does not answer")

    def usage(self, reach: Reach) -> Usage | None:
        volume = reach.pool.volumes.find(reach.volume) if reach.pool else None
        if reach.pool and volume:
            return reach.pool.usage(volume)
        try:  # statvfs shows the owner's pool, and its quota does not travel
            found = self.peers.ask(reach.owner, "volume.usage", {"volume": reach.volume}, _ASK_S)
        except UbError:
            return None
        return Usage(int(found["used"]), int(found["total"]))

    def detach(self, reach: Reach, node: str) -> None:
        self.mounts.drop(reach.volume)  # first, and with it goes to the owner what is not there yet
        with suppress(NotFound):
            self.noted.detach(reach, node)

    def _served(self, reach: Reach) -> Served:
        host = self.peers.hosts.get(reach.owner)
        if reach.owner == self.peers.node:
            host = self.peers.address or "127.0.0.1"
        if host is None:
            raise Unsupported(f"volume {reach.volume} is served by node {reach.owner}, which is not among our peers")
        port, pool = reach.context.get("port", ""), reach.context.get("served", "")
        if not (port.isascii() and port.isdecimal()) or not pool.startswith("/"):
            raise NotFound(f"volume {reach.volume} is served nowhere: its context says {port!r} and {pool!r}")
        return Served(host, int(port), str(_data(Path(pool), reach.volume)))


def _number(volume_id: str) -> str:
    """Return the UUID that names a volume in file handles."""
    return str(uuid.UUID(volume_id.rpartition("-")[2]))


def _data(pool: Path, volume_id: str) -> Path:
    """Return what is exported: what pods see, and not who uses it."""
    return pool / "volumes" / volume_id / "share/data"

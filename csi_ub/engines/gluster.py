"""The strong engine between machines: GlusterFS without its management daemon and without its caches.

On the owner one ``glusterfsd`` for each volume offers the volume's share on a port of its own; on every node that
uses the volume, the owner too, one ``glusterfs`` mounts it, and pods get a bind mount of ``data`` in there. Nobody
writes to the share behind the brick's back. With ``replicas: 3`` two more nodes keep a share and a brick
(``csi_ub.replicas``), and a client goes on as long as it reaches two of the three.

Attachments are files in the share too: the agreement about who may use a volume is as strong as the volume.

What it does not do: MAP_SHARED mappings (direct I/O FUSE refuses them), and encryption. Bricks admit who has the
volume's password, or the addresses of the peers where the drivers have no key; never a node that is fenced.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from csi_ub import programs
from csi_ub.engines.base import Engine, Reach, volume_context
from csi_ub.engines.bricks import Share, unhealed
from csi_ub.engines.clients import Clients, Place, sites
from csi_ub.engines.daemonfiles import wait
from csi_ub.engines.replication import Replication
from csi_ub.model import Attachment, Site, Volume
from csi_ub.peers.channel import Verb
from csi_ub.pool import Pool
from csi_ub.pools.base import Usage
from csi_ub.pools.copy import copy_tree, remove_tree
from csi_ub.reasons import Unreachable
from csi_ub.replicas import Replicas, flush_share
from ubhost.errors import HostFault, NotFound, UbError, Unsupported


@dataclass(frozen=True, slots=True)
class GlusterEngine(Engine):
    """``replicas`` is what this node keeps for others, ``replication`` what others keep for this node."""

    node: str
    clients: Clients
    replicas: Replicas
    replication: Replication

    name = "glusterfs"
    spans_machines = True

    def check(self, replicas: int = 1) -> None:
        programs.find("glusterfsd")
        programs.find("glusterfs")
        if replicas > 1:
            self.replication.check()
        if not self.replication.peers.hosts:
            raise Unsupported("engine glusterfs needs peers in the configuration of the driver")

    def verbs(self) -> Mapping[str, Verb]:
        kept = self.replicas
        put = {"replica.put": kept.put, "replica.drop": kept.drop, "replica.state": kept.state}
        return {**put, "replica.flush": kept.flush, "client.end": self.clients.end}

    def tidy(self, find: Callable[[str], Volume | None]) -> None:
        self.replicas.look_after()
        self.replication.settle(find)
        self.clients.files.trim_logs()

    def prepare(self, volume: Volume, pool: Pool) -> Volume:
        if volume.is_sown and not volume.port:
            volume = pool.volumes.update(volume.id, lambda it: it if it.port else self._sown(it, pool))
        if volume.is_sown:
            pool.drop_seed(volume.id)
        after = self._served(volume, pool)
        if after == volume:
            return volume
        port, others = after.port, after.sites
        # A call that made the same volume at the same time may have come first.
        return pool.volumes.update(volume.id, lambda it: it if it.port else replace(it, port=port, sites=others))

    def is_prepared(self, volume: Volume) -> bool:
        # With three replicas its CreateVolume, which waits for other nodes, is not answered yet, and will be repeated.
        return bool(volume.port) or volume.spec.replicas > 1

    def look_after(self, volume: Volume, pool: Pool) -> None:
        if volume.port:
            self.prepare(volume, pool)

    def grow(self, volume: Volume, pool: Pool, size: int) -> Volume:
        grown = pool.grow(volume.id, size)
        self.replication.tell(grown)
        return grown

    def check_current(self, volume: Volume, pool: Pool) -> None:
        self.replication.refuse_behind(volume)

    def context(self, volume: Volume, pool: Pool) -> Mapping[str, str]:
        quota = "enforced" if pool.space.has_quota else "none"
        others = {f"site{number}": f"{site.port} {site.node}" for number, site in enumerate(volume.sites, 1)}
        return {**volume_context(self.name, volume), "port": str(volume.port), "quota": quota, **others}

    def stage(self, reach: Reach) -> int:
        return self.clients.bring(reach.volume, self._places(_sites(reach)))

    def attach(self, reach: Reach, attachment: Attachment) -> None:
        with self.clients.share(reach.volume) as share:
            share.attach(attachment)

    def is_alive(self, reach: Reach) -> bool:
        """Whether the client runs. While it does it finds back to its brick by itself, so it must not be replaced."""
        return self.clients.is_alive(reach.volume)

    def verify(self, reach: Reach) -> None:
        if reach.pool and not self.replicas.bricks.is_running(reach.volume):
            raise HostFault(f"the brick of volume {reach.volume} on its owner {reach.owner} does not run")
        if self.clients.is_mounted(reach.volume):
            if not self.is_alive(reach):
                raise Unreachable(f"the client of volume {reach.volume} on node {self.node} is dead: stage it again")
            if not self.clients.answers(reach.volume):
                raise Unreachable(f"volume {reach.volume} of node {reach.owner} does not answer on node {self.node}")
        found = _sites(reach)
        if len(found) > 1:
            silent = [site.node for site in found if not self._answers(site)]
            if silent:
                raise HostFault(
                    f"volume {reach.volume} has {len(found) - len(silent)} of {len(found)} replicas: node "
                    f"{' and node '.join(silent)} does not answer node {self.node}"
                )

    def usage(self, reach: Reach) -> Usage | None:
        volume = reach.pool.volumes.find(reach.volume) if reach.pool else None
        if reach.pool and volume:
            return reach.pool.usage(volume)
        if reach.context.get("quota") != "none":
            return self._usage_elsewhere(reach)  # statvfs shows the owner's pool, and its quota does not travel
        found = self.clients.space(reach.volume)
        return Usage((found.f_blocks - found.f_bfree) * found.f_frsize, found.f_blocks * found.f_frsize)

    def detach(self, reach: Reach, node: str) -> None:
        if reach.pool and reach.pool.volumes.find(reach.volume) is None:
            self.clients.drop(reach.volume)
            return
        os.close(self.stage(reach))
        with self.clients.share(reach.volume) as share:
            share.detach(node)
        self.clients.drop(reach.volume)

    def fence(self, volume: Volume, pool: Pool) -> None:
        """Shut out the nodes that ``volume.fenced`` names: a majority of the bricks no longer knows them."""
        self.replicas.bricks.ensure(_share(volume, pool), volume.port)
        self.replication.tell(volume, at_least=min(1, len(volume.sites)))

    def expel(self, volume: Volume, pool: Pool, node: str) -> None:
        os.close(self.stage(Reach(volume.id, volume.owner, self.context(volume, pool), pool)))
        with self.clients.share(volume.id) as share:
            share.detach(node)

    def retire(self, volume: Volume, pool: Pool) -> None:
        if volume.sites:
            self.replication.close(volume)
            try:
                self.replication.refuse_behind(volume)  # the owner's bytes tell who uses the volume
            except UbError:
                self.replication.tell(volume)
                raise
        self._end_daemons(volume.id)  # a client is left over where a node was shut out

    def forget(self, volume: Volume, pool: Pool) -> None:
        """Remove the brick's index and its marks on files: whoever works on the files without it makes them wrong."""
        share = pool.at(volume.id)
        remove_tree(share / ".glusterfs")
        for here, folders, names in os.walk(share):
            for path in (here, *(f"{here}/{name}" for name in (*folders, *names))):
                for mark in os.listxattr(path, follow_symlinks=False):
                    if mark.startswith(("trusted.gfid", "trusted.glusterfs.")):
                        with suppress(FileNotFoundError):
                            os.removexattr(path, mark, follow_symlinks=False)

    def _served(self, volume: Volume, pool: Pool) -> Volume:
        """See that all its bricks serve a volume; return its record, which says where."""
        is_new = not volume.port
        after = replace(volume, port=self.replicas.bricks.ensure(_share(volume, pool), volume.port))
        if volume.spec.replicas > 1:
            if not after.sites:
                after = replace(after, sites=self.replication.place(after))
            self.replication.tell(after, at_least=len(after.sites) if is_new else 0)
            self.replicas.healers.ensure(volume.id, self._places(_own_sites(after)))
        return after

    def _sown(self, volume: Volume, pool: Pool) -> Volume:
        """Bring the seed of a new volume to all its replicas; return its record. A killed try is begun again.

        The copy goes through a client, as a pod's would: what a brick has, it has from GlusterFS.

        Raises:
            Unreachable: there are not two other nodes, or one of the three was lost meanwhile.
        """
        self._end_daemons(volume.id)
        self.replication.start_over(volume.id)
        pool.empty(volume)
        after = self._served(volume, pool)
        os.close(self.clients.bring(volume.id, self._places(_own_sites(after))))
        copy_tree(pool.seed(volume.id) / "data", self.clients.point(volume.id) / "data")
        wait_for = f"volume {volume.id} is not alike yet on nodes {', '.join(site.node for site in _own_sites(after))}"
        wait(lambda: self._is_whole(after, pool), wait_for)
        self.clients.drop(volume.id)
        flush_share(_share(after, pool).path)
        self.replication.flush(after)
        return after

    def _is_whole(self, volume: Volume, pool: Pool) -> bool:
        return unhealed(_share(volume, pool).path) == 0 and self.replication.is_even(volume)

    def _end_daemons(self, volume_id: str) -> None:
        self.replicas.healers.stop(volume_id)
        self.replicas.bricks.stop(volume_id)
        self.clients.drop(volume_id)

    def _places(self, wanted: Sequence[Site]) -> list[Place]:
        found = []
        for site in wanted:
            place = self.replicas.bricks.place(site)
            if place is None:
                raise Unsupported(f"the volume is served by node {site.node}, which is not among our peers")
            found.append(place)
        return found

    def _answers(self, site: Site) -> bool:
        place = self.replicas.bricks.place(site)
        return place is not None and self.replicas.bricks.answers(*place)

    def _usage_elsewhere(self, reach: Reach) -> Usage | None:
        if kept := self.replicas.find(reach.volume):
            return self.replicas.usage(*kept)
        try:
            found = self.replication.peers.ask(reach.owner, "volume.usage", {"volume": reach.volume}, timeout_s=2)
            return Usage(int(found["used"]), int(found["total"]))
        except UbError:
            return None


def _share(volume: Volume, pool: Pool) -> Share:
    return Share(volume.id, pool.at(volume.id), volume.fenced, is_replica=volume.spec.replicas > 1)


def _own_sites(volume: Volume) -> tuple[Site, ...]:
    return Site(volume.owner, volume.port), *volume.sites


def _sites(reach: Reach) -> tuple[Site, ...]:
    found = sites(reach.owner, reach.context)
    if not found:
        raise NotFound(f"volume {reach.volume} has no port: its context says {reach.context.get('port')!r}")
    return found

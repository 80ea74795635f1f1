"""The eventual engine: a whole copy of the volume on every node that uses it, kept alike by Syncthing.

Pods work on their node's own copy at local speed. What is promised: readers see whole files only; after the writers
stop all copies become alike; two edits of one file at once keep both, one as ``*.sync-conflict-*``; and with the links
up a change is everywhere within ``maxStaleness``. That bound is measured all the time: each node writes a beat into
the volume, and a beat that is older than the bound when another node looks at it makes the volume abnormal there.
(Beats carry the time of their writer, so clocks must agree, as a cluster's do.)

The owner's copy is the share in its pool; others keep theirs below ``<state>/replicas`` until everything in it has
reached the owner, also after the last pod has gone. Of a model each node has a copy too, at the speed and with the page
cache of its own disk; it puts a version in force when every chunk has the right hash, there or, by ``switchPolicy``, on
all nodes that use the model.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from csi_ub import logfiles, programs
from csi_ub.engines.base import Engine, Reach, volume_context
from csi_ub.locks import hold
from csi_ub.model import Attachment, Volume, VolumeType, is_own_id, owner_tag
from csi_ub.models.follower import Follower
from csi_ub.models.store import ModelStore
from csi_ub.models.switching import SwitchPolicy
from csi_ub.peers.channel import Peers, Verb
from csi_ub.pool import Pool
from csi_ub.pools.base import Usage
from csi_ub.pools.copy import remove_tree
from csi_ub.reasons import InUse, Unreachable
from csi_ub.share import Share
from csi_ub.syncthing import beats, folders, terms
from csi_ub.syncthing.daemon import Daemon
from csi_ub.syncthing.keeper import Keeper
from csi_ub.syncthing.terms import Terms
from ubhost.errors import HostFault, NotFound, UbError, Unsupported

_FIRST_SYNC_S = 12.0


@dataclass(frozen=True, slots=True)
class SyncthingEngine(Engine):
    """The eventual volumes of node ``node``: its own in its pools, copies of others' where ``keeper`` keeps them."""

    node: str
    daemon: Daemon
    keeper: Keeper
    peers: Peers

    name = "syncthing"
    spans_machines = True

    def check(self, replicas: int = 1) -> None:
        programs.find("syncthing")
        if not self.keeper.peers:
            raise Unsupported("consistency eventual needs peers in the configuration of the driver")

    def resume(self) -> None:
        replicas = self.keeper.replicas
        if replicas.is_dir() and any(replicas.iterdir()):
            self.daemon.start()
            self.keeper.start()

    def verbs(self) -> Mapping[str, Verb]:
        return {"copy.state": self._copy_state}

    def _copy_state(self, asked: Mapping[str, object]) -> dict[str, object]:
        """Tell another node whether we have a copy of its volume."""
        volume = str(asked.get("volume"))
        return {"has": is_own_id(volume) and (self.keeper.replicas / volume).is_dir()}

    def tidy(self, find: Callable[[str], Volume | None]) -> None:
        logfiles.trim(self.daemon.run / "log")

    def prepare(self, volume: Volume, pool: Pool) -> Volume:
        share = pool.at(volume.id)
        self._share_folder(volume.id, share, _terms(volume.owner, self.context(volume, pool)))
        return volume

    def look_after(self, volume: Volume, pool: Pool) -> None:
        self.prepare(volume, pool)

    def context(self, volume: Volume, pool: Pool) -> Mapping[str, str]:
        context = {**volume_context(self.name, volume), "maxStaleness": f"{volume.spec.max_staleness_s:g}s"}
        if volume.spec.type is VolumeType.MODEL:
            return {**context, "switchPolicy": volume.spec.switch_policy.value}
        return {**context, "writers": volume.spec.writers.value}

    def stage(self, reach: Reach) -> int:
        share = self.copy(reach)
        if reach.pool is None:
            if reach.owner not in self.keeper.peers:
                raise Unsupported(f"volume {reach.volume} belongs to node {reach.owner}, which is not among our peers")
            self._make_copy(reach, share)
        return os.open(share / "data", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def attach(self, reach: Reach, attachment: Attachment) -> None:
        with self._open(reach) as share:
            share.attach(attachment)

    def verify(self, reach: Reach) -> None:
        if not self.daemon.is_running():
            raise HostFault(f"Syncthing does not run on node {self.node}: copies of volume {reach.volume} drift apart")
        share = self.copy(reach)
        if not (share / "data").is_dir():
            raise NotFound(f"volume {reach.volume} has no data on node {self.node}")
        if trouble := self._trouble(reach.volume):
            raise HostFault(f"volume {reach.volume} on node {self.node} cannot take what others sent: {trouble}")
        agreed = _terms(reach.owner, reach.context)
        if agreed.is_model:
            follower = Follower(ModelStore(share), self.node, reach.pool is not None, agreed.switch_policy)
            if fault := follower.fault():
                raise HostFault(f"model {reach.volume}: {fault}")
        bound = agreed.max_staleness_s
        late = {node: lag for node, lag in beats.lags(share, self.node).items() if lag > bound}
        if late:
            worst = max(late, key=lambda node: late[node])
            raise HostFault(
                f"volume {reach.volume} on node {self.node} is {late[worst]:.1f} s behind node {worst}, more than the "
                f"promised {bound:g} s"
            )

    def usage(self, reach: Reach) -> Usage | None:
        volume = reach.pool.volumes.find(reach.volume) if reach.pool else None
        if reach.pool and volume:
            return reach.pool.usage(volume)
        found = os.statvfs(self.copy(reach))
        return Usage((found.f_blocks - found.f_bfree) * found.f_frsize, found.f_blocks * found.f_frsize)

    def detach(self, reach: Reach, node: str) -> None:
        with suppress(NotFound), self._open(reach) as share:
            share.detach(node)
            beats.forget(share.path, node)
            if reach.pool is None:
                # The keeper removes the copy when the owner has all of it.
                self.keeper.mark(reach.volume).write_text(reach.owner, encoding="utf-8")

    def refuse_copies(self, volume: Volume) -> None:
        for node in self.keeper.peers:
            if self.peers.ask(node, "copy.state", {"volume": volume.id})["has"]:
                raise InUse(f"volume {volume.id} has a copy on node {node}, which gives it back when all of it is here")

    def forget(self, volume: Volume, pool: Pool) -> None:
        share = pool.at(volume.id)
        for name in ("beats", ".stfolder", "whole"):
            remove_tree(share / name)
        for name in (".stignore", "terms.json", "conflicts", ".beat"):
            (share / name).unlink(missing_ok=True)

    def retire(self, volume: Volume, pool: Pool) -> None:
        self.daemon.start()
        with suppress(NotFound):
            self.daemon.delete(f"config/folders/{volume.id}")

    def copy(self, reach: Reach) -> Path:
        """Return where this node's copy of a volume is, or would be."""
        return reach.pool.at(reach.volume) if reach.pool else self.keeper.replicas / reach.volume

    def _trouble(self, volume_id: str) -> str:
        """Return why what others sent cannot be taken: a full disk, for example; "" if nothing is wrong."""
        status = self.daemon.get("db/status", folder=volume_id)
        if status.get("error"):
            return str(status["error"])
        if status.get("pullErrors"):
            errors = self.daemon.get("folder/errors", folder=volume_id).get("errors") or ()
            return next((f"{each['path']}: {each['error']}" for each in errors), "")
        return ""

    def _make_copy(self, reach: Reach, share: Path) -> None:
        self.keeper.replicas.mkdir(parents=True, exist_ok=True, mode=0o700)
        mark, agreed = self.keeper.mark(reach.volume), _terms(reach.owner, reach.context)
        with hold(self.keeper.replicas, f"copy {reach.volume}"):
            mark.unlink(missing_ok=True)
            for folder, mode in (("data", 0o755 if agreed.is_model else 0o777), ("nodes", 0o700), ("beats", 0o700)):
                (share / folder).mkdir(parents=True, exist_ok=True)
                (share / folder).chmod(mode)
            self._share_folder(reach.volume, share, agreed)
        try:
            self._wait_for_owner(reach, share)
        except UbError:
            if not (share / "nodes" / f"{owner_tag(self.node)}.json").exists():
                mark.write_text(reach.owner, encoding="utf-8")  # nobody uses it yet
            raise

    def _share_folder(self, volume_id: str, share: Path, agreed: Terms) -> None:
        """Let Syncthing keep ``share`` alike on all nodes; start what is needed for it."""
        self.daemon.start()
        for folder in ("beats", ".stfolder"):
            (share / folder).mkdir(exist_ok=True, mode=0o700)
        if terms.read(share) != agreed:  # we are called every few seconds: let the disk rest
            ignored = folders.IGNORE_MODEL if agreed.is_model else folders.IGNORE
            (share / ".stignore").write_text(ignored, encoding="utf-8")
            terms.write(share, agreed)
        everybody = self.keeper.everybody()
        wanted = folders.folder(volume_id, str(share), everybody, max_staleness_s=agreed.max_staleness_s)
        try:
            known = self.daemon.get(f"config/folders/{volume_id}")
        except NotFound:
            known = None
        if known is None or known["path"] != str(share) or known["fsWatcherDelayS"] != wanted["fsWatcherDelayS"]:
            self.daemon.put(f"config/folders/{volume_id}", wanted)
        self.keeper.start()

    def _wait_for_owner(self, reach: Reach, share: Path) -> None:
        """Wait until the copy has what the owner had: its beat has come, and nothing is missing."""
        beat, deadline = share / "beats" / owner_tag(reach.owner), time.monotonic() + _FIRST_SYNC_S
        while True:
            if beat.exists() and self.daemon.get("db/status", folder=reach.volume)["needTotalItems"] == 0:
                return
            if time.monotonic() > deadline:
                raise Unreachable(f"node {reach.owner} has not sent volume {reach.volume} yet")
            time.sleep(0.2)

    @contextmanager
    def _open(self, reach: Reach) -> Iterator[Share]:
        try:
            descriptor = os.open(self.copy(reach), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFound(f"volume {reach.volume} has no copy on node {self.node}") from None
        try:
            path = Path(f"/proc/self/fd/{descriptor}")
            yield Share(reach.volume, path, descriptor, path, is_one_machine=False)
        finally:
            os.close(descriptor)


def _terms(owner: str, context: Mapping[str, str]) -> Terms:
    """Return what a volume context promises; one of an older driver lacks the newer keys."""
    return Terms(
        owner,
        float(context.get("maxStaleness", "5s").removesuffix("s")),
        is_model=context.get("type") == VolumeType.MODEL.value,
        switch_policy=SwitchPolicy(context.get("switchPolicy", SwitchPolicy.ALL_READY.value)),
    )

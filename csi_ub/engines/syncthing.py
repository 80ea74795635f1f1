"""The eventual engine: a whole copy of the volume on every node that uses it, kept alike by Syncthing.

Pods work on their node's own copy at local speed. What is promised: readers see whole files only; after the writers
stop all copies become alike; two edits of one file at once keep both, one as ``*.sync-conflict-*``; and with the links
up a change is everywhere within ``maxStaleness``. That bound is measured all the time: each node writes a beat into
the volume, and a beat that is older than the bound when another node looks at it makes the volume abnormal there.
(Beats carry the time of their writer, so clocks must agree, as a cluster's do.)

The owner's copy is the share in its pool; others keep theirs below ``<state>/replicas`` until everything in it has
reached the owner, also after the last pod has gone. Of a model each node has a copy too, at the speed and with the page
cache of its own disk; it puts a version in force when all of it is there and every chunk has the right hash.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from csi_ub import programs
from csi_ub.engines.base import Reach, volume_context
from csi_ub.locks import hold
from csi_ub.model import Attachment, Volume, VolumeType, owner_tag
from csi_ub.models.store import ModelStore
from csi_ub.pool import Pool, Share
from csi_ub.pools.base import Usage
from csi_ub.pools.copy import remove_tree
from csi_ub.reasons import Unreachable
from csi_ub.syncthing import deviceid, folders
from csi_ub.syncthing.daemon import PORT, Daemon
from ubhost.errors import Busy, HostFault, NotFound, UbError, Unsupported

_FIRST_SYNC_S = 12.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SyncthingEngine:
    """``peers`` are the addresses of the other nodes; ``replicas`` is the folder of this node's copies of theirs."""

    node: str
    daemon: Daemon
    peers: Mapping[str, str]
    replicas: Path
    _devices: dict[str, str] = field(default_factory=dict)  # node to device id, as far as they have answered
    _bounds: dict[str, float] = field(default_factory=dict)  # volume to its maxStaleness, in seconds
    _working: dict[str, threading.Thread] = field(default_factory=dict)
    _keeper: threading.Event = field(default_factory=threading.Event)

    name = "syncthing"
    spans_machines = True

    def check(self) -> None:
        programs.find("syncthing")
        if not self.peers:
            raise Unsupported("consistency eventual needs peers in the configuration of the driver")

    def resume(self) -> None:
        if self.replicas.is_dir() and any(self.replicas.iterdir()):
            self.daemon.start()
            self._start_keeper()

    def prepare(self, volume: Volume, pool: Pool) -> Volume:
        share = pool.volumes.home / volume.id / "share"
        is_model = volume.spec.type is VolumeType.MODEL
        self._share_folder(volume.id, share, volume.spec.max_staleness_s, is_model=is_model)
        return volume

    def look_after(self, volume: Volume, pool: Pool) -> None:
        self.prepare(volume, pool)

    def context(self, volume: Volume, pool: Pool) -> Mapping[str, str]:
        return {**volume_context(self.name, volume), "maxStaleness": f"{volume.spec.max_staleness_s:g}s"}

    def stage(self, reach: Reach) -> int:
        share = self._path(reach)
        if reach.pool is None:
            if reach.owner not in self.peers:
                raise Unsupported(f"volume {reach.volume} belongs to node {reach.owner}, which is not among our peers")
            self._make_copy(reach, share)
        return os.open(share / "data", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def attach(self, reach: Reach, attachment: Attachment) -> None:
        with self._open(reach) as share:
            share.attach(attachment)

    def is_alive(self, reach: Reach) -> bool:
        return True  # the copy is this node's own

    def verify(self, reach: Reach) -> None:
        if not self.daemon.is_running():
            raise HostFault(f"Syncthing does not run on node {self.node}: copies of volume {reach.volume} drift apart")
        share = self._path(reach)
        if not (share / "data").is_dir():
            raise NotFound(f"volume {reach.volume} has no data on node {self.node}")
        bound = _staleness(reach)
        late = {node: lag for node, lag in lags(share, self.node).items() if lag > bound}
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
        found = os.statvfs(self._path(reach))
        return Usage((found.f_blocks - found.f_bfree) * found.f_frsize, found.f_blocks * found.f_frsize)

    def detach(self, reach: Reach, node: str) -> None:
        with suppress(NotFound), self._open(reach) as share:
            share.detach(node)
            (share.path / "beats" / owner_tag(node)).unlink(missing_ok=True)
            if reach.pool is None:
                # The keeper removes the copy when the owner has all of it.
                self._mark(reach).write_text(reach.owner, encoding="utf-8")

    def retire(self, volume: Volume, pool: Pool) -> None:
        self.daemon.start()
        with suppress(NotFound):
            self.daemon.delete(f"config/folders/{volume.id}")

    def keep(self) -> None:
        """Do what has to be done now and then: find peers that came up, beat, and drop copies that are done with."""
        self.daemon.start()  # it may have died
        for node, host in self.peers.items():
            if node not in self._devices:
                with suppress(UbError):
                    self._meet(node, host)
        for folder in self.daemon.get("config/folders"):
            share = Path(folder["path"])
            if share.parent == self.replicas and (self.replicas / f"{share.name}.done").exists():
                with suppress(Busy), hold(self.replicas, f"copy {share.name}", wait_s=0):
                    self._drop(share)
                continue
            _beat(share, self.node)
            if share.parent == self.replicas and (share / "manifests").is_dir():
                self._in_background(f"follow {share.name}", ModelStore(share).follow)
            self._in_background(f"scan {folder['id']}", lambda id_=folder["id"]: self._scan(id_))  # type: ignore[misc]
            if {device["deviceID"] for device in folder["devices"]} < set(self._everybody()):
                folder["devices"] = [{"deviceID": device} for device in self._everybody()]
                self.daemon.put(f"config/folders/{folder['id']}", folder)

    def _in_background(self, name: str, work: Callable[[], object]) -> None:
        """Do something that may take minutes, unless it is being done already: beats must not wait for it."""
        earlier = self._working.get(name)
        if earlier is None or not earlier.is_alive():
            self._working[name] = threading.Thread(target=work, name=name, daemon=True)
            self._working[name].start()

    def _scan(self, volume_id: str) -> None:
        """Look for changes, then rest: a fifth of the bound, and fifty times as long as the look took.

        Syncthing's own watcher keeps a file back for six seconds while it goes on changing. This does not.
        """
        started = time.monotonic()
        with suppress(UbError):
            self.daemon.scan(volume_id)
        took = time.monotonic() - started
        time.sleep(max(self._bounds.get(volume_id, 5.0) / 5, 50 * took) - took)

    def _make_copy(self, reach: Reach, share: Path) -> None:
        self.replicas.mkdir(parents=True, exist_ok=True, mode=0o700)
        with hold(self.replicas, f"copy {reach.volume}"):
            self._mark(reach).unlink(missing_ok=True)
            is_model = reach.context.get("type") == VolumeType.MODEL.value
            for folder, mode in (("data", 0o755 if is_model else 0o777), ("nodes", 0o700), ("beats", 0o700)):
                (share / folder).mkdir(parents=True, exist_ok=True)
                (share / folder).chmod(mode)
            self._share_folder(reach.volume, share, _staleness(reach), is_model=is_model)
        try:
            self._wait_for_owner(reach, share)
        except UbError:
            if not (share / "nodes" / f"{owner_tag(self.node)}.json").exists():
                self._mark(reach).write_text(reach.owner, encoding="utf-8")  # nobody uses it yet
            raise

    def _share_folder(self, volume_id: str, share: Path, max_staleness_s: float, *, is_model: bool) -> None:
        """Let Syncthing keep ``share`` alike on all nodes; start what is needed for it."""
        self._bounds[volume_id] = max_staleness_s
        self.daemon.start()
        (share / "beats").mkdir(exist_ok=True, mode=0o700)
        (share / ".stfolder").mkdir(exist_ok=True, mode=0o700)
        (share / ".stignore").write_text(folders.IGNORE_MODEL if is_model else folders.IGNORE, encoding="utf-8")
        wanted = folders.folder(volume_id, str(share), self._everybody(), max_staleness_s=max_staleness_s)
        try:
            known = self.daemon.get(f"config/folders/{volume_id}")
        except NotFound:
            known = None
        if known is None or known["path"] != str(share) or known["fsWatcherDelayS"] != wanted["fsWatcherDelayS"]:
            self.daemon.put(f"config/folders/{volume_id}", wanted)
        self._start_keeper()

    def _start_keeper(self) -> None:
        if not self._keeper.is_set():
            self._keeper.set()
            threading.Thread(target=self._keep_on, name="syncthing keeper", daemon=True).start()

    def _everybody(self) -> list[str]:
        return sorted({self.daemon.device, *self._devices.values()})

    def _meet(self, node: str, host: str) -> None:
        found = deviceid.ask(host, PORT)
        self.daemon.put(f"config/devices/{found}", folders.device(found, node, host, PORT))
        self._devices[node] = found

    def _wait_for_owner(self, reach: Reach, share: Path) -> None:
        """Wait until the copy has what the owner had: its beat has come, and nothing is missing."""
        beat, deadline = share / "beats" / owner_tag(reach.owner), time.monotonic() + _FIRST_SYNC_S
        while True:
            if beat.exists() and self.daemon.get("db/status", folder=reach.volume)["needTotalItems"] == 0:
                return
            if time.monotonic() > deadline:
                raise Unreachable(f"node {reach.owner} has not sent volume {reach.volume} yet")
            time.sleep(0.2)

    def _drop(self, share: Path) -> None:
        """Remove a copy that nobody uses, if its owner has all of it. The caller holds its lock."""
        mark = self.replicas / f"{share.name}.done"
        device = self._devices.get(mark.read_text(encoding="utf-8")) if mark.exists() else None
        if device is None:
            return
        self.daemon.scan(share.name)  # what was written last may not have been noticed yet
        if self.daemon.get("db/completion", folder=share.name, device=device)["completion"] < 100:
            return
        self.daemon.delete(f"config/folders/{share.name}")
        remove_tree(share)
        mark.unlink(missing_ok=True)

    def _keep_on(self) -> None:
        while True:
            try:
                self.keep()
            except (UbError, OSError) as error:
                log.warning("copies are not kept just now", extra={"error": str(error)})
            time.sleep(1)

    def _path(self, reach: Reach) -> Path:
        return reach.pool.volumes.home / reach.volume / "share" if reach.pool else self.replicas / reach.volume

    def _mark(self, reach: Reach) -> Path:
        return self.replicas / f"{reach.volume}.done"

    @contextmanager
    def _open(self, reach: Reach) -> Iterator[Share]:
        try:
            descriptor = os.open(self._path(reach), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFound(f"volume {reach.volume} has no copy on node {self.node}") from None
        try:
            path = Path(f"/proc/self/fd/{descriptor}")
            yield Share(reach.volume, path, descriptor, path, is_one_machine=False)
        finally:
            os.close(descriptor)


def lags(share: Path, node: str) -> dict[str, float]:
    """Return for each other node that uses the volume how many seconds old its last beat is here."""
    found = {}
    for path in (share / "beats").glob("[0-9a-f]*"):
        with suppress(OSError, ValueError, KeyError):
            beat = json.loads(path.read_text(encoding="utf-8"))
            if beat["node"] != node:
                found[str(beat["node"])] = max(0.0, time.time() - float(beat["time"]))
    return found


def _beat(share: Path, node: str) -> None:
    path = share / "beats" / owner_tag(node)
    temporary = share / ".beat"
    temporary.write_text(json.dumps({"node": node, "time": time.time()}), encoding="utf-8")
    temporary.replace(path)


def _staleness(reach: Reach) -> float:
    return float(reach.context.get("maxStaleness", "5s").removesuffix("s"))

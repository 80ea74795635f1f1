"""What has to be done now and then for the copies of a node, in a thread of its own: see ``Keeper.keep``."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from csi_ub.locks import hold
from csi_ub.models.follower import Follower
from csi_ub.models.store import ModelStore
from csi_ub.models.switching import Standing
from csi_ub.pools.copy import remove_tree
from csi_ub.share import attachments
from csi_ub.syncthing import beats, conflicts, deviceid, folders, terms
from csi_ub.syncthing.daemon import PORT, Daemon
from csi_ub.syncthing.terms import Terms
from ubhost.errors import Busy, UbError

_COUNT_S = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Keeper:
    """``peers`` are the addresses of the other nodes; ``replicas`` is the folder of this node's copies of theirs."""

    node: str
    daemon: Daemon
    peers: Mapping[str, str]
    replicas: Path
    _devices: dict[str, str] = field(default_factory=dict)  # node to device id, as far as they have answered
    _working: dict[str, threading.Thread] = field(default_factory=dict)
    _started: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Keep from now on; nothing happens if it does already."""
        if not self._started.is_set():
            self._started.set()
            threading.Thread(target=self._keep_on, name="syncthing keeper", daemon=True).start()

    def everybody(self) -> list[str]:
        """Return the devices of all nodes that we have met, ours too."""
        return sorted({self.daemon.device, *self._devices.values()})

    def mark(self, volume: str) -> Path:
        """Return the file that says that a copy is not needed any more; it names the owner."""
        return self.replicas / f"{volume}.done"

    def keep(self) -> None:
        """Find peers that came up, look for changes and conflicts, beat, follow models, drop unused copies."""
        self.daemon.start()  # it may have died
        for node, host in self.peers.items():
            if node not in self._devices:
                with suppress(UbError):
                    self._meet(node, host)
        for folder in self.daemon.get("config/folders"):
            share = Path(folder["path"])
            if share.parent == self.replicas and self.mark(share.name).exists():
                with suppress(Busy), hold(self.replicas, f"copy {share.name}", wait_s=0):
                    self._drop(share)
                continue
            agreed = terms.read(share)
            if agreed is None:
                continue
            self._beat(share, folder["id"], agreed)
            self._in_background(f"scan {folder['id']}", lambda id_=folder["id"], s=agreed: self._scan(id_, s))  # type: ignore[misc]
            if not agreed.is_model:
                self._in_background(f"count {folder['id']}", lambda s=share: _count(s))  # type: ignore[misc]
            if {device["deviceID"] for device in folder["devices"]} < set(self.everybody()):
                folder["devices"] = [{"deviceID": device} for device in self.everybody()]
                self.daemon.put(f"config/folders/{folder['id']}", folder)

    def _beat(self, share: Path, volume: str, agreed: Terms) -> None:
        if not agreed.is_model:
            beats.write(share, self.node)
            return
        follower = Follower(ModelStore(share), self.node, agreed.owner == self.node, agreed.switch_policy)
        told = follower.standing()
        beats.write(share, self.node, told.whole, told.current)
        self._in_background(f"follow {volume}", lambda: follower.follow(standings(share, self.node)))

    def _in_background(self, name: str, work: Callable[[], object]) -> None:
        """Do something that may take minutes, unless it is being done already: beats must not wait for it."""
        earlier = self._working.get(name)
        if earlier is None or not earlier.is_alive():
            self._working[name] = threading.Thread(target=_logged, args=(name, work), name=name, daemon=True)
            self._working[name].start()

    def _scan(self, volume: str, agreed: Terms) -> None:
        """Look for changes, then rest: a fifth of the bound, and fifty times as long as the look took.

        Syncthing's own watcher keeps a file back for six seconds while it goes on changing, and loses what its queue
        cannot hold. This does neither.
        """
        started = time.monotonic()
        with suppress(UbError):
            self.daemon.scan(volume)
        took = time.monotonic() - started
        time.sleep(max(agreed.max_staleness_s / 5, 50 * took) - took)

    def _meet(self, node: str, host: str) -> None:
        found = deviceid.ask(host, PORT)
        self.daemon.put(f"config/devices/{found}", folders.device(found, node, host, PORT))
        self._devices[node] = found

    def _drop(self, share: Path) -> None:
        """Remove a copy that nobody uses, if its owner has all of it. The caller holds its lock."""
        mark = self.mark(share.name)
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


def _count(share: Path) -> None:
    """Count conflicts, then rest for long: pods have a better use for the disk."""
    started = time.monotonic()
    conflicts.count(share)
    time.sleep(max(_COUNT_S, 100 * (time.monotonic() - started)))


def standings(share: Path, node: str) -> list[Standing]:
    """Return what is known of the other nodes that use a model; one that has not told anything yet has nothing."""
    told = {beat.node: Standing(beat.node, beat.whole, beat.current) for beat in beats.read(share)}
    return [told.get(each.node, Standing(each.node)) for each in attachments(share) if each.node != node]


def _logged(name: str, work: Callable[[], object]) -> None:
    try:
        work()
    except (UbError, OSError) as error:
        log.warning("not done just now", extra={"work": name, "error": str(error)})

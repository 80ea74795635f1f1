"""The ``glusterfs`` processes of this node: mounts of volumes at ``<run>/mounts/<volume>``, and healers of replicas.

All outlive the driver. A client that runs finds back to its bricks by itself, so it is replaced only when it is dead.
"""

import logging
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from csi_ub.bounded import Bounded
from csi_ub.engines import volfiles
from csi_ub.engines.daemonfiles import Files, wait
from csi_ub.model import Site, is_own_id, owner_tag
from csi_ub.peers.credentials import Key
from csi_ub.reasons import Unreachable
from csi_ub.share import Share
from ubhost.errors import HostFault, UbError
from ubhost.kernel import mountinfo, mounts

_CHECK_S = 3.0
# No time passes in which a node may believe what it read before; no page cache stands between it and the bricks.
_UNCACHED = ("--attribute-timeout=0", "--entry-timeout=0", "--negative-timeout=0", "--direct-io-mode=enable")

Place = tuple[str, int]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Clients:
    """Mounts of volumes on node ``node``."""

    node: str
    files: Files
    key: Key
    bounded: Bounded = field(default_factory=Bounded)

    def bring(self, volume_id: str, places: Sequence[Place]) -> int:
        """Mount a volume that its bricks serve at ``places``; return a descriptor of what pods see.

        Raises:
            Unreachable: it does not answer.
        """
        point = self.point(volume_id)
        with self.files.alone(f"client {volume_id}"):
            if mountinfo.at(mountinfo.read(), point) and not self.is_alive(volume_id):
                log.warning("a dead client is replaced", extra={"mount": str(point)})
                _unmount_all(point, lazy=True)
            if not mountinfo.at(mountinfo.read(), point):
                self._start(volume_id, places, point)
        if not self.answers(volume_id):
            raise Unreachable(f"volume {volume_id} is not served just now by {_text(places)}")
        return os.open(point / "data", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def is_mounted(self, volume_id: str) -> bool:
        return bool(mountinfo.at(mountinfo.read(), self.point(volume_id)))

    def is_alive(self, volume_id: str) -> bool:
        return self.files.pid(volume_id, "client") is not None

    def answers(self, volume_id: str) -> bool:
        """Whether the mount answers; never hangs."""
        data = self.point(volume_id) / "data"
        return self.bounded.succeeds(f"volume {volume_id}", data.stat, _CHECK_S)

    def space(self, volume_id: str) -> os.statvfs_result:
        return self.bounded.run(f"space of volume {volume_id}", lambda: os.statvfs(self.point(volume_id)), _CHECK_S)

    @contextmanager
    def share(self, volume_id: str) -> Iterator[Share]:
        """Open the share of a mounted volume, where its users are noted."""
        try:
            descriptor = os.open(self.point(volume_id), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Unreachable(f"volume {volume_id} does not answer: {error.strerror}") from error
        try:
            path = Path(f"/proc/self/fd/{descriptor}")
            yield Share(volume_id, path, descriptor, path / "nodes", is_one_machine=False)
        finally:
            os.close(descriptor)

    def drop(self, volume_id: str) -> None:
        """Unmount a volume; it may be unmounted."""
        point = self.point(volume_id)
        with self.files.alone(f"client {volume_id}"):
            try:
                _unmount_all(point, lazy=not self.is_alive(volume_id))
                point.rmdir()
            except FileNotFoundError:
                pass
            except OSError as error:
                raise HostFault(f"cannot let go of {point}: {error.strerror}") from error
            self.files.remove(volume_id, "client")

    def end(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the owner of a volume that shut this node out: what is open here from before never works again."""
        volume_id = str(content.get("volume"))
        if is_own_id(volume_id):
            self.files.end(volume_id, "client", signal.SIGKILL)
        return {}

    def point(self, volume_id: str) -> Path:
        return self.files.folder / "mounts" / volume_id

    def _start(self, volume_id: str, places: Sequence[Place], point: Path) -> None:
        self.files.write(
            volume_id, "client.vol", volfiles.client(volume_id, places, login(self.key, volume_id, self.node))
        )
        point.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.files.run("glusterfs", volume_id, "client", *_UNCACHED, str(point))
        try:
            wait(lambda: self.is_alive(volume_id), f"volume {volume_id} is not served at {_text(places)}")
        except UbError:
            _unmount_all(point, lazy=True)
            raise


@dataclass(frozen=True, slots=True)
class Healers:
    """One daemon for each replica that this node keeps: it brings up to date whichever of the three was away."""

    node: str
    files: Files
    key: Key

    def ensure(self, volume_id: str, places: Sequence[Place]) -> None:
        """See that a volume whose bricks are at ``places`` has a healer here."""
        with self.files.alone(f"healer {volume_id}"):
            text = volfiles.healer(volume_id, places, login(self.key, volume_id, self.node))
            if self.files.pid(volume_id, "healer") and self.files.read(volume_id, "healer.vol") == text:
                return
            self.files.end(volume_id, "healer")
            self.files.write(volume_id, "healer.vol", text)
            self.files.run("glusterfs", volume_id, "healer", "--process-name", "glustershd")

    def stop(self, volume_id: str) -> None:
        """End the healer of a volume; it may have ended."""
        with self.files.alone(f"healer {volume_id}"):
            self.files.end(volume_id, "healer")
            self.files.remove(volume_id, "healer")


def login(key: Key, volume_id: str, node: str) -> volfiles.Login | None:
    """Return what opens a volume to ``node``."""
    return volfiles.Login(owner_tag(node), key.password(volume_id, node)) if key else None


def sites(owner: str, context: Mapping[str, str]) -> tuple[Site, ...]:
    """Return who serves a volume, the owner first, from its context; empty if that is damaged."""
    texts = [f"{context.get('port', '')} {owner}", *(context[key] for key in sorted(context) if key.startswith("site"))]
    found = []
    for text in texts:
        port, _, node = text.partition(" ")
        if not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536 or not node:
            return ()
        found.append(Site(node, int(port)))
    return tuple(found)


def _unmount_all(point: Path, *, lazy: bool) -> None:
    for _ in mountinfo.at(mountinfo.read(), point):
        mounts.unmount(point, lazy=lazy)


def _text(places: Sequence[Place]) -> str:
    return ", ".join(f"{host}:{port}" for host, port in places)

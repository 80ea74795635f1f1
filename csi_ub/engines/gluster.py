"""The strong engine between machines: GlusterFS without its management daemon and without its caches.

On the owner one ``glusterfsd`` for each volume offers the volume's share on a port of its own; on every node that
uses the volume, the owner too, one ``glusterfs`` mounts it at ``<run>/mounts/<id>``, and pods get a bind mount of
``data`` in there. Nobody writes to the share behind the brick's back. Both daemons outlive the driver; a driver that
starts finds them by their pid files, and starts the bricks that are missing.

Attachments are files in the share too: the agreement about who may use a volume is as strong as the volume.

What it does not do: MAP_SHARED mappings (direct I/O FUSE refuses them), and encryption: the network of the
super-node is trusted, bricks answer the addresses of the peers only.
"""

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from csi_ub import programs
from csi_ub.bounded import Bounded
from csi_ub.engines import volfiles
from csi_ub.engines.base import Reach, volume_context
from csi_ub.locks import hold
from csi_ub.model import Attachment, Volume
from csi_ub.pool import Pool, Share
from csi_ub.pools.base import Usage
from csi_ub.reasons import Unreachable
from ubhost.errors import Exhausted, HostFault, NotFound, UbError, Unsupported
from ubhost.kernel import mountinfo, mounts

_PORTS = range(24100, 25100)
_START_S = 10.0
_CHECK_S = 3.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GlusterEngine:
    """``address`` is where this node's bricks listen (``None``: everywhere), ``peers`` where those of others do."""

    node: str
    address: str | None
    peers: Mapping[str, str]
    run: Path
    bounded: Bounded = field(default_factory=Bounded)

    name = "glusterfs"
    spans_machines = True

    def check(self) -> None:
        programs.find("glusterfsd")
        programs.find("glusterfs")
        if not self.peers:
            raise Unsupported("engine glusterfs needs peers in the configuration of the driver")

    def resume(self) -> None:
        """Bricks are started by ``look_after``, and clients when they are needed."""

    def prepare(self, volume: Volume, pool: Pool) -> Volume:
        with self._alone(f"brick {volume.id}"):
            if volume.port and programs.is_running(self._file(volume.id, "brick.pid"), self._brick(volume.id)):
                return volume
            port = volume.port or self._free_port()
            self._start_brick(replace(volume, port=port), pool)
        if port == volume.port:
            return volume
        return pool.volumes.update(volume.id, lambda known: replace(known, port=port))

    def look_after(self, volume: Volume, pool: Pool) -> None:
        if volume.port:  # without one its CreateVolume is not answered yet, and will be repeated
            self.prepare(volume, pool)

    def context(self, volume: Volume, pool: Pool) -> Mapping[str, str]:
        quota = "enforced" if pool.space.has_quota else "none"
        return {**volume_context(self.name, volume), "port": str(volume.port), "quota": quota}

    def stage(self, reach: Reach) -> int:
        point = self._point(reach.volume)
        with self._alone(f"client {reach.volume}"):
            if mountinfo.at(mountinfo.read(), point) and not self.is_alive(reach):
                log.warning("a dead client is replaced", extra={"mount": str(point)})
                _unmount_all(point, lazy=True)
            if not mountinfo.at(mountinfo.read(), point):
                self._start_client(reach, point)
        if not self._answers_here(reach.volume):
            raise Unreachable(f"node {reach.owner} does not serve volume {reach.volume} just now")
        return os.open(point / "data", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def attach(self, reach: Reach, attachment: Attachment) -> None:
        with self._share(reach) as share:
            share.attach(attachment)

    def is_alive(self, reach: Reach) -> bool:
        """Whether the client runs. While it does it finds back to its brick by itself, so it must not be replaced."""
        return programs.is_running(self._file(reach.volume, "client.pid"), self._client(reach.volume)) is not None

    def verify(self, reach: Reach) -> None:
        if reach.pool and not programs.is_running(self._file(reach.volume, "brick.pid"), self._brick(reach.volume)):
            raise HostFault(f"the brick of volume {reach.volume} on its owner {reach.owner} does not run")
        if not mountinfo.at(mountinfo.read(), self._point(reach.volume)):
            return
        if not self.is_alive(reach):
            raise Unreachable(f"the client of volume {reach.volume} on node {self.node} is dead: stage it again")
        if not self._answers_here(reach.volume):
            raise Unreachable(f"volume {reach.volume} of node {reach.owner} does not answer on node {self.node}")

    def usage(self, reach: Reach) -> Usage | None:
        volume = reach.pool.volumes.find(reach.volume) if reach.pool else None
        if reach.pool and volume:
            return reach.pool.usage(volume)
        if reach.context.get("quota") != "none":
            return None  # statvfs shows the owner's pool, and its quota does not travel
        found = self.bounded.run(f"volume {reach.volume}", lambda: os.statvfs(self._point(reach.volume)), _CHECK_S)
        return Usage((found.f_blocks - found.f_bfree) * found.f_frsize, found.f_blocks * found.f_frsize)

    def detach(self, reach: Reach, node: str) -> None:
        if reach.pool and reach.pool.volumes.find(reach.volume) is None:
            self._stop_client(reach)
            return
        os.close(self.stage(reach))
        with self._share(reach) as share:
            share.detach(node)
        self._stop_client(reach)

    def retire(self, volume: Volume, pool: Pool) -> None:
        with self._alone(f"brick {volume.id}"):
            pid_file, argument = self._file(volume.id, "brick.pid"), self._brick(volume.id)
            if pid := programs.is_running(pid_file, argument):
                os.kill(pid, signal.SIGTERM)
                _wait(lambda: not programs.is_running(pid_file, argument), f"brick of volume {volume.id} does not stop")
            for suffix in ("brick.pid", "brick.vol", "brick.log"):
                self._file(volume.id, suffix).unlink(missing_ok=True)

    def _start_brick(self, volume: Volume, pool: Pool) -> None:
        text = volfiles.brick(
            volume.id,
            str(pool.volumes.home / volume.id / "share"),
            listen=self.address or "0.0.0.0",  # noqa: S104 - the brick answers the peers' addresses only
            port=volume.port,
            allowed=sorted({"127.0.0.1", *self.peers.values(), *([self.address] if self.address else [])}),
        )
        self._write(volume.id, "brick.vol", text)
        pid, log_file = self._file(volume.id, "brick.pid"), self._file(volume.id, "brick.log")
        programs.run(["glusterfsd", "-f", self._brick(volume.id), "-p", str(pid), "-l", str(log_file)])
        _wait(lambda: self._answers(volume.port), f"the brick of volume {volume.id} does not answer at {volume.port}")

    def _start_client(self, reach: Reach, point: Path) -> None:
        host = (self.address or "127.0.0.1") if reach.owner == self.node else self.peers.get(reach.owner)
        port = reach.context.get("port", "")
        if host is None:
            raise Unsupported(f"volume {reach.volume} belongs to node {reach.owner}, which is not among our peers")
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise NotFound(f"volume {reach.volume} has no port: its context says {port!r}")
        self._write(reach.volume, "client.vol", volfiles.client(reach.volume, host=host, port=int(port)))
        point.mkdir(parents=True, exist_ok=True, mode=0o700)
        programs.run(
            [
                "glusterfs",
                *("-f", self._client(reach.volume), "-p", str(self._file(reach.volume, "client.pid"))),
                *("-l", str(self._file(reach.volume, "client.log"))),
                *("--attribute-timeout=0", "--entry-timeout=0", "--negative-timeout=0", "--direct-io-mode=enable"),
                str(point),
            ]
        )
        try:
            _wait(
                lambda: self.is_alive(reach),
                f"node {reach.owner} does not serve volume {reach.volume} at {host}:{port}",
            )
        except UbError:
            _unmount_all(point, lazy=True)
            raise

    def _stop_client(self, reach: Reach) -> None:
        point = self._point(reach.volume)
        with self._alone(f"client {reach.volume}"):
            try:
                _unmount_all(point, lazy=not self.is_alive(reach))
                point.rmdir()
            except FileNotFoundError:
                pass
            except OSError as error:
                raise HostFault(f"cannot let go of {point}: {error.strerror}") from error
            for suffix in ("client.vol", "client.log", "client.pid"):
                self._file(reach.volume, suffix).unlink(missing_ok=True)

    @contextmanager
    def _share(self, reach: Reach) -> Iterator[Share]:
        point = self._point(reach.volume)
        try:
            descriptor = os.open(point, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Unreachable(f"volume {reach.volume} does not answer: {error.strerror}") from error
        try:
            path = Path(f"/proc/self/fd/{descriptor}")
            yield Share(reach.volume, path, descriptor, path / "nodes", is_one_machine=False)
        finally:
            os.close(descriptor)

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        self.run.mkdir(parents=True, exist_ok=True, mode=0o700)
        with hold(self.run, what, wait_s=_START_S):
            yield

    def _answers(self, port: int) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex((self.address or "127.0.0.1", port)) == 0

    def _free_port(self) -> int:
        for port in _PORTS:
            with socket.socket() as probe, suppress(OSError):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((self.address or "", port))
                return port
        raise Exhausted(f"no port of {_PORTS.start} to {_PORTS.stop - 1} is free on node {self.node}")

    def _write(self, volume_id: str, suffix: str, text: str) -> None:
        path = self._file(volume_id, suffix)
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise HostFault(f"cannot write {path}: {error.strerror}") from error

    def _file(self, volume_id: str, suffix: str) -> Path:
        return self.run / f"{volume_id}.{suffix}"

    def _brick(self, volume_id: str) -> str:
        return str(self._file(volume_id, "brick.vol"))

    def _client(self, volume_id: str) -> str:
        return str(self._file(volume_id, "client.vol"))

    def _answers_here(self, volume_id: str) -> bool:
        data = self._point(volume_id) / "data"
        try:
            self.bounded.run(f"volume {volume_id}", data.stat, _CHECK_S)
        except (OSError, UbError):
            return False
        return True

    def _point(self, volume_id: str) -> Path:
        return self.run / "mounts" / volume_id


def _unmount_all(point: Path, *, lazy: bool) -> None:
    for _ in mountinfo.at(mountinfo.read(), point):
        mounts.unmount(point, lazy=lazy)


def _wait(until: Callable[[], bool], failure: str) -> None:
    deadline = time.monotonic() + _START_S
    while not until():
        if time.monotonic() > deadline:
            raise Unreachable(failure)
        time.sleep(0.02)

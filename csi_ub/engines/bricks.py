"""The ``glusterfsd`` processes of this node: one serves the share of one volume on a port of its own.

They outlive the driver, which finds them by their pid files. One that serves what is no longer wanted (a node was
fenced, a peer came) is started again at the same port: its clients find back to it by themselves.
"""

import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from csi_ub.engines import volfiles
from csi_ub.engines.daemonfiles import START_S, Files, wait
from csi_ub.model import Site, owner_tag
from csi_ub.peers.credentials import Key
from ubhost.errors import Exhausted, HostFault

_PORTS = range(24100, 25100)
_SILENT_S, _BELIEVED_S = 1.0, 3.0
_ID = "trusted.glusterfs.volume-id"
_GFID = "trusted.gfid"


@dataclass(frozen=True, slots=True)
class Share:
    """What a brick serves: the folder ``path`` of ``volume``, to all nodes but ``fenced``; ``is_replica``: of three."""

    volume: str
    path: Path
    fenced: tuple[str, ...] = ()
    is_replica: bool = False


@dataclass(frozen=True, slots=True)
class Bricks:
    """``address`` is where they listen (``None``: everywhere), ``peers`` are the addresses of the other nodes."""

    node: str
    address: str | None
    peers: Mapping[str, str]
    files: Files
    key: Key
    _silent: dict[str, float] = field(default_factory=dict)  # host to when it is asked again
    _given: dict[int, float] = field(default_factory=dict)  # port to when its brick listens, or never will
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ensure(self, share: Share, port: int) -> int:
        """See that a brick serves ``share`` at ``port`` (0: any that is free); return the port."""
        with self.files.alone(f"brick {share.volume}"):
            pid = self.files.pid(share.volume, "brick")
            served = self.files.read(share.volume, "brick.vol")
            port = port or (volfiles.port(served) if pid else 0) or self._free_port()
            text = self._text(share, port)
            if pid and served == text:
                return port
            self.files.end(share.volume, "brick")
            if share.is_replica:
                _mark(share)
            self.files.write(share.volume, "brick.vol", text)
            self.files.run("glusterfsd", share.volume, "brick")
            failure = f"the brick of volume {share.volume} does not answer at {port}"
            wait(lambda: self.answers(self.address or "127.0.0.1", port), failure)
        return port

    def is_running(self, volume_id: str) -> bool:
        return self.files.pid(volume_id, "brick") is not None

    def stop(self, volume_id: str) -> None:
        """End the brick of a volume; it may have ended."""
        with self.files.alone(f"brick {volume_id}"):
            self.files.end(volume_id, "brick")
            self.files.remove(volume_id, "brick")

    def answers(self, host: str, port: int) -> bool:
        """Whether something listens there. A host that is silent is not asked about each of its bricks."""
        if time.monotonic() < self._silent.get(host, 0.0):
            return False
        try:
            socket.create_connection((host, port), timeout=_SILENT_S).close()
        except TimeoutError:
            self._silent[host] = time.monotonic() + _BELIEVED_S
            return False
        except OSError:
            return False
        return True

    def place(self, site: Site) -> tuple[str, int] | None:
        """Return where a site's brick listens, ``None`` if its node is not among our peers."""
        host = (self.address or "127.0.0.1") if site.node == self.node else self.peers.get(site.node)
        return None if host is None else (host, site.port)

    def _text(self, share: Share, port: int) -> str:
        admitted = sorted({self.node, *self.peers} - set(share.fenced))
        if self.key:
            logins = {owner_tag(node): self.key.password(share.volume, node) for node in admitted}
            access = volfiles.by_login(share.volume, logins)
        else:
            hosts = {self.peers[node] for node in admitted if node in self.peers}
            own = {"127.0.0.1", self.address or "127.0.0.1"} if self.node in admitted else set()
            access = volfiles.by_address(share.volume, sorted(hosts | own))
        return volfiles.brick(
            share.volume,
            str(share.path),
            listen=self.address or "0.0.0.0",  # noqa: S104 - the brick answers those in ``access`` only
            port=port,
            access=access,
            uuid=str(_uuid(share.volume)) if share.is_replica else None,
        )

    def _free_port(self) -> int:
        for port in _PORTS:
            with self._lock:  # volumes are made in parallel, and a brick listens only after a while
                if time.monotonic() < self._given.get(port, 0.0):
                    continue
                self._given[port] = time.monotonic() + START_S
            with socket.socket() as probe, suppress(OSError):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((self.address or "", port))
                return port
        raise Exhausted(f"no port of {_PORTS.start} to {_PORTS.stop - 1} is free on node {self.node}")


def unhealed(share: Path) -> int:
    """Return how many files and folders of a replica are known to differ on another one that was away.

    Raises:
        HostFault: the index cannot be read.
    """
    try:
        return sum(not entry.name.startswith("xattrop-") for entry in os.scandir(share / volfiles.INDEX / "xattrop"))
    except OSError as error:
        raise HostFault(f"cannot read the index of {share}: {error.strerror}") from error


def _mark(share: Share) -> None:
    """Make a share one of three that are alike from the start: their folders have the same ids, and an index each."""
    path = share.path
    try:
        for folder in ("xattrop", "dirty", "entry-changes"):
            (path / volfiles.INDEX / folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        os.setxattr(path, _ID, _uuid(share.volume).bytes)
        for name in ("data", "nodes"):
            gfid = uuid.uuid5(_uuid(share.volume), name)
            with suppress(FileExistsError):
                os.setxattr(path / name, _GFID, gfid.bytes, os.XATTR_CREATE)
            handle = path / ".glusterfs" / str(gfid)[:2] / str(gfid)[2:4] / str(gfid)
            handle.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with suppress(FileExistsError):
                handle.symlink_to(f"../../00/00/00000000-0000-0000-0000-000000000001/{name}")
    except OSError as error:
        raise HostFault(f"cannot prepare {path} for replication: {error.strerror}") from error


def _uuid(volume_id: str) -> uuid.UUID:
    return uuid.UUID(volume_id.rpartition("-")[2])

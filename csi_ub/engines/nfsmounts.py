"""The NFS mounts of this node: volumes of all owners, itself too, at ``<run>/nfs/<volume>``.

They are hard: a program waits while the owner is away, and goes on when it is back, instead of losing what it wrote.
So everything here that may wait for the owner is bounded. Names that were not there are asked for again each time
(``lookupcache=pos``); otherwise a file made elsewhere could stay unseen for a minute after it was closed.

Source: nfs(5); Linux fs/nfs/fs_context.c for what mount(2) itself must be told: ``addr`` and ``clientaddr``.
"""

import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from csi_ub.bounded import Bounded
from csi_ub.engines.exports import address, bracketed, refuse_without
from csi_ub.locks import hold
from csi_ub.reasons import Unreachable
from ubhost.errors import HostFault, NotFound
from ubhost.kernel import mountinfo, mounts

_CHECK_S, _MOUNT_S, _CONNECT_S = 3.0, 10.0, 2.0
_OPTIONS = "vers=4.2,proto=tcp,sec=sys,hard,timeo=50,retrans=2,lookupcache=pos"


@dataclass(frozen=True, slots=True)
class Served:
    """Where a volume is served: ``export`` of ``host``."""

    host: str
    port: int
    export: str


@dataclass(frozen=True, slots=True)
class NfsMounts:
    """``folder`` has the mount points."""

    folder: Path
    proc: Path = Path("/proc")
    mount: Callable[[str, Path, str, str], None] = mounts.mount
    bounded: Bounded = field(default_factory=Bounded)

    def check(self) -> None:
        """Raise ``Unsupported`` if this node cannot mount NFS."""
        refuse_without(self.proc, "nfs4", "an NFS client")

    def bring(self, volume_id: str, served: Served) -> int:
        """Mount a volume, if it is not; return a descriptor of what pods see.

        Raises:
            Unreachable: its owner does not answer.
            NotFound: its owner offers it to us no more.
        """
        point = self.point(volume_id)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with hold(self.folder, f"mount {volume_id}"):
            if not self.is_mounted(volume_id):
                self._mount(volume_id, served, point)
        if not self.answers(volume_id):
            raise Unreachable(f"volume {volume_id} is not served just now by {served.host}")
        return os.open(point, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def is_mounted(self, volume_id: str) -> bool:
        return bool(mountinfo.at(mountinfo.read(), self.point(volume_id)))

    def answers(self, volume_id: str) -> bool:
        """Whether the mount answers; never hangs."""
        return self.bounded.succeeds(f"volume {volume_id}", lambda: os.statvfs(self.point(volume_id)), _CHECK_S)

    def drop(self, volume_id: str) -> None:
        """Unmount a volume, with all that was written to it sent to its owner; it may be unmounted.

        Raises:
            Unreachable: the owner did not take it yet.
        """
        point = self.point(volume_id)
        if not self.folder.is_dir():
            return
        with hold(self.folder, f"mount {volume_id}"):
            try:
                for _ in mountinfo.at(mountinfo.read(), point):
                    self.bounded.run(f"unmounting {volume_id}", lambda: mounts.unmount(point), _MOUNT_S)
                with suppress(FileNotFoundError):
                    point.rmdir()
            except OSError as error:
                raise HostFault(f"cannot let go of {point}: {error.strerror}") from error

    def point(self, volume_id: str) -> Path:
        return self.folder / volume_id

    def _mount(self, volume_id: str, served: Served, point: Path) -> None:
        host = address(served.host)
        try:  # the kernel would try for minutes
            with socket.create_connection((host, served.port), timeout=_CONNECT_S) as known:
                own = known.getsockname()[0]
        except OSError as error:
            raise Unreachable(
                f"{host} does not serve {volume_id} at port {served.port}: {error.strerror or error}"
            ) from error
        point.mkdir(exist_ok=True, mode=0o700)
        source = f"{bracketed(host)}:{served.export}"
        data = f"{_OPTIONS},port={served.port},addr={host},clientaddr={own}"
        try:
            self.bounded.run(f"mounting {volume_id}", lambda: self.mount(source, point, "nfs4", data), _MOUNT_S)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EACCES, errno.ESTALE):
                raise NotFound(f"node at {host} offers {served.export} to {own} no more: {error.strerror}") from error
            raise HostFault(f"cannot mount {source}: {error.strerror}") from error

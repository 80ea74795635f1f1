"""The gRPC server on a unix socket that only root can reach.

Handlers run in threads: mounts block, and one hung mount must not keep ``Probe`` waiting. Nothing here forks:
gRPC's own threads do not survive a fork.
"""

import logging
import os
import stat
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from pathlib import Path

import grpc

from csi_ub.errors import Observe, ReasonToStatus
from ubhost.errors import Busy, HostFault, InvalidRequest
from ubhost.notify import Manager
from ubhost.socketpath import listens

THREADS = 64  # a hung mount holds one of them at most (see csi_ub.node), 32 parallel creates must fit
DRAIN_S = 20.0  # kubelet gives a pod 30 s between SIGTERM and SIGKILL
_LONGEST = 107  # bytes of sun_path without its final zero

log = logging.getLogger(__name__)


def socket_path(endpoint: str) -> Path:
    """Return the path of a ``unix:///path`` endpoint.

    Raises:
        InvalidRequest: it is something else; CSI knows no other kind of endpoint.
    """
    scheme, separator, rest = endpoint.partition("://")
    if scheme != "unix" or not separator or not rest.startswith("/"):
        raise InvalidRequest(f"endpoint {endpoint!r} is not of the form unix:///path")
    if len(os.fsencode(rest)) > _LONGEST:
        raise InvalidRequest(f"endpoint {endpoint!r} is longer than the {_LONGEST} bytes that a socket may have")
    return Path(rest)


def clear(path: Path) -> None:
    """Remove the socket that a dead process left at ``path``.

    Raises:
        Busy: a living process answers there.
        HostFault: the path is no socket, or its folder cannot be used.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise HostFault(f"{path} exists and is not a socket")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        return
    if listens(path):
        raise Busy(f"another process serves {path}")
    path.unlink(missing_ok=True)


class Server:
    """A server that listens at once and stops when ``stop`` is set, after the calls in flight are answered."""

    def __init__(
        self,
        path: Path,
        services: list[Callable[[grpc.Server], None]],
        observe: Observe = lambda *_: None,
        inner: Sequence[grpc.ServerInterceptor] = (),
    ) -> None:
        """Bind the socket; ``observe`` is told of each call, ``inner`` stand between reasons and services.

        Raises:
            Busy, HostFault: see ``clear``.
        """
        self.path = path
        self.server = grpc.server(
            futures.ThreadPoolExecutor(THREADS, thread_name_prefix="csi"),
            interceptors=[ReasonToStatus(observe), *inner],
        )
        for add in services:
            add(self.server)
        try:
            clear(path)
            before = os.umask(0o177)  # the socket must never exist with wider rights; no other thread runs yet
            try:
                self.server.add_insecure_port(f"unix:{path}")
            finally:
                os.umask(before)
        except (OSError, RuntimeError) as error:
            raise HostFault(f"cannot listen on {path}: {error}") from error

    def run(self, stop: threading.Event, manager: Manager) -> None:
        self.server.start()
        log.info("serving", extra={"socket": str(self.path)})
        with manager.serving(f"serving {self.path}"):
            stop.wait()
        log.info("draining")
        self.server.stop(DRAIN_S).wait()
        log.info("stopped")

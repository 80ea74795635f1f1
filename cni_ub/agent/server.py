"""The agent's socket: CNI calls in, answers out.

A fixed number of threads wait in accept(). One that got a call greets, so a shim that hears the greeting has a
worker of its own, and one that does not hear it in time does the work itself. A call that hangs costs one worker.
Only root may call. The engine never raises, and a caller who hangs up before its ADD is finished gets it undone.
There is one agent on a host: who starts a server holds ``agent.lock``.

Source: design section 4; the talk itself is in ``cni_ub.wire``.
"""

import contextlib
import logging
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from cni_ub import engine, wire
from cni_ub.host import Host, Stop
from ubhost.errors import HostFault
from ubhost.kernel import netns

LOG = logging.getLogger("cni_ub.agent")
BACKLOG = 128
READ_TIMEOUT = 10.0  # seconds for a caller to say what it wants
CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid, uid, gid


class Server:
    """Listens on ``path`` with ``workers`` threads."""

    name = "cni socket"

    def __init__(self, path: Path, host: Host, workers: int, observe: Callable[[str, bool, float], None]) -> None:
        self._path = path
        self._host = host
        self._observe = observe
        self._count = workers
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Listen.

        Raises:
            HostFault: the socket cannot be made.
        """
        self._listener = _listen(self._path)
        self._threads = [threading.Thread(target=self._work, name=f"cni-{n}", daemon=True) for n in range(self._count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Take no more calls, and finish those that were begun: their time is bounded by the engine."""
        if self._listener is None:
            return
        self._path.unlink(missing_ok=True)  # shims do the work themselves from now on
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        for thread in self._threads:
            thread.join()
        self._listener.close()
        self._listener = None

    def ready(self) -> str | None:
        return None if self._listener else "not listening"

    def _work(self) -> None:
        assert self._listener
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # shut down
                return
            try:
                with connection:
                    self._serve(connection)
            except OSError as error:
                LOG.info("a caller went away", extra={"error": str(error)})
            except wire.Malformed as error:
                LOG.warning("a caller does not speak our protocol", extra={"error": str(error)})
            except Exception:
                LOG.exception("a bug")

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(READ_TIMEOUT)
        pid, uid, _ = CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
        if uid != os.geteuid():
            LOG.warning("a caller is not root", extra={"pid": pid, "uid": uid})
            return
        connection.sendall(wire.greeting(netns.own_inode()))
        data, pods = _receive(connection)
        try:
            if not data:  # it changed its mind
                return
            variables, nonce, stdin = wire.parse_request(data)
            environ = {os.fsdecode(key): os.fsdecode(value) for key, value in variables.items()}
            host = replace(self._host, stop=HangUp(connection))
            code, document = engine.run(host, environ, nonce.decode(), stdin, pods[0] if pods else None, self._observe)
            connection.settimeout(READ_TIMEOUT)
            connection.sendall(wire.answer(code, document))
        finally:
            for fd in pods:
                os.close(fd)


class HangUp(Stop):
    """Asks for the call to be undone when its caller is gone: nobody would learn of the result."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._connection = connection

    def check(self) -> None:
        poll = select.poll()
        poll.register(self._connection, 0)  # POLLHUP is always reported: the caller closed both directions
        if any(event & select.POLLHUP for _, event in poll.poll(0)):
            self.request("the caller went away")
        super().check()


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)  # that of an agent that was killed: we hold the lock of this host
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except BaseException as error:
        listener.close()
        if isinstance(error, OSError):
            raise HostFault(f"cannot listen on {path}: {error.strerror or error}") from error
        raise
    return listener


def _receive(connection: socket.socket) -> tuple[bytes, Sequence[int]]:
    """Read a whole request and the descriptors that came with it."""
    flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0x40000000)
    data, pods, _, _ = socket.recv_fds(connection, 1 << 16, 4, flags)
    try:
        parts, size = [data], len(data)
        while data and (data := connection.recv(1 << 16)):
            parts.append(data)
            size += len(data)
            if size > wire.MAX_REQUEST:
                raise wire.Malformed(f"a request of more than {wire.MAX_REQUEST} bytes")
    except BaseException:
        for fd in pods:
            with contextlib.suppress(OSError):
                os.close(fd)
        raise
    return b"".join(parts), pods

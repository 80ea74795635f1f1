"""The doors of a simulated node: stream and packet sockets, one thread a connection, peers known by the kernel.

Source: unix(7) (SO_PEERCRED, SCM_RIGHTS); reference/ub.md section 5 (at most 8 connections per uid).
"""

import array
import contextlib
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ubhost.errors import HostFault
from ubhost.netlink import MAX_MESSAGE
from ubhost.ubse import wire
from ubsim.caller import UCRED, Caller

MAX_PER_UID = 8
MAX_DESCRIPTORS = 4  # with one request
REQUEST_TIMEOUT_S = 60.0  # ubse.conf request.timeout


def listen(path: Path, kind: socket.SocketKind, mode: int) -> socket.socket:
    """Return a socket that listens at ``path`` with exactly ``mode``.

    Raises:
        HostFault: it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    door = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
    before = os.umask(0o777 & ~mode)
    try:
        door.bind(str(path))
        door.listen(64)
    except OSError as error:
        door.close()
        raise HostFault(f"cannot listen at {path}: {error.strerror or error}") from error
    finally:
        os.umask(before)
    return door


def accept(door: socket.socket, serve: Callable[[socket.socket], None], name: str) -> None:
    """Take one waiting connection and serve it on a thread of its own."""
    try:
        connection, _ = door.accept()
    except OSError:  # it gave up, or the door closed
        return

    def run() -> None:
        with connection, contextlib.suppress(ConnectionError, TimeoutError):  # a peer that hangs up is no fault of ours
            serve(connection)

    threading.Thread(target=run, name=name, daemon=True).start()


def keep(door: socket.socket, serve: Callable[[socket.socket], None], _: str) -> None:
    """Take one waiting connection and hand it over, root's only."""
    with contextlib.suppress(OSError):
        connection, _ = door.accept()
        if Caller.of(connection).is_root:
            serve(connection)
        else:
            connection.close()


def serve_kernel(connection: socket.socket, answer: Callable[[bytes, int | None, Caller], bytes]) -> None:
    """Answer netlink datagrams until the peer hangs up; descriptors live as long as their request."""
    peer = Caller.of(connection)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    space = socket.CMSG_SPACE(4 * MAX_DESCRIPTORS) + socket.CMSG_SPACE(UCRED.size)
    while True:
        request, ancillary, _, _ = connection.recvmsg(MAX_MESSAGE, space, socket.MSG_CMSG_CLOEXEC)
        descriptors = _descriptors(ancillary)
        try:
            if not request:
                return
            caller = Caller.who_sent(ancillary) or peer
            reply = answer(request, descriptors[0] if descriptors else None, caller)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if reply:
            connection.send(reply)


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


class Ration:
    """At most so many connections for each user."""

    def __init__(self, limit: int = MAX_PER_UID) -> None:
        self._limit = limit
        self._held: Counter[int] = Counter()
        self._lock = threading.Lock()

    def take(self, uid: int) -> bool:
        with self._lock:
            if self._held[uid] >= self._limit:
                return False
            self._held[uid] += 1
            return True

    def give_back(self, uid: int) -> None:
        with self._lock:
            self._held[uid] -= 1


def serve_ubse(connection: socket.socket, ration: Ration, call: Callable[[wire.Request, int], wire.Reply]) -> None:
    """Answer one request; a user with too many connections is hung up on."""
    uid = Caller.of(connection).uid
    if not ration.take(uid):
        return
    try:
        connection.settimeout(REQUEST_TIMEOUT_S)
        try:
            module, op, length = wire.request_header(_exactly(connection, wire.REQUEST.size))
        except (EOFError, wire.Malformed):
            return
        with contextlib.suppress(EOFError):
            connection.sendall(call(wire.Request(module, op, _exactly(connection, length)), uid).encode())
    finally:
        ration.give_back(uid)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def serve_lines(connection: socket.socket, answer: Callable[[bytes], bytes]) -> None:
    """Answer one line with one line, for root only."""
    if not Caller.of(connection).is_root:
        return
    with connection.makefile("rwb") as stream:
        for line in stream:
            stream.write(answer(line) + b"\n")
            stream.flush()

"""A UBSE that a test plays: real unix socket, answers from a function."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ubhost.model import Eid
from ubhost.roots import Roots
from ubhost.ubse import bodies, wire
from ubhost.ubse.wire import UrmaOp

Handler = Callable[[int, int, bytes], bytes]


class Server:
    """Answers each connection once, with the bytes that ``handler`` returns; counts who is connected."""

    def __init__(self, path: Path) -> None:
        self.handler: Handler = lambda *_: wire.Reply(0).encode()
        self.heard: list[tuple[int, int, bytes]] = []
        self.most_at_once = 0
        self._now = 0
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(16)
        self._thread = threading.Thread(target=self._accept)
        self._workers = ThreadPoolExecutor(16)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=60)
        self._workers.shutdown()
        self._listener.close()

    def answer(self, body: bytes = b"", status: int = 0) -> None:
        self.handler = lambda *_: wire.Reply(status, body).encode()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._workers.submit(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            with self._lock:
                self._now += 1
                self.most_at_once = max(self.most_at_once, self._now)
            module, op, length = wire.request_header(connection.recv(wire.REQUEST.size, socket.MSG_WAITALL))
            body = connection.recv(length, socket.MSG_WAITALL) if length else b""
            self.heard.append((module, op, body))
            answer = self.handler(module, op, body)
            with self._lock:
                self._now -= 1
            for byte in answer:  # one byte at a time: a stream has no messages
                try:
                    connection.send(bytes([byte]))
                except BrokenPipeError:
                    return


@pytest.fixture
def ubse(roots: Roots) -> Iterator[Server]:
    """UBSE with urma_1, which it gives out once."""
    roots.ubse_socket.parent.mkdir(parents=True)
    server = Server(roots.ubse_socket)
    held: dict[str, tuple[int, int] | None] = {}

    def handle(module: int, op: int, body: bytes) -> bytes:
        device = "urma_1" if op == UrmaOp.DEV_GET else body.partition(b"\0")[0].decode()
        if device != "urma_1":
            return wire.Reply(1007).encode()
        match UrmaOp(op):
            case UrmaOp.DEV_GET:
                return wire.Reply(0, bodies.encode_urma_list([bodies.UrmaInfo("urma_1")])).encode()
            case UrmaOp.DEV_ALLOC:
                if device in held:
                    return wire.Reply(1006).encode()
                held[device] = None
                paths = bodies.UrmaPaths("bonding_dev_1", ("udma3", "udma2"), Eid(5))
                return wire.Reply(0, paths.encode()).encode()
            case UrmaOp.DEV_FREE:
                return wire.Reply(0 if held.pop(device, 1) is None else 1007).encode()
            case UrmaOp.QOS_SET:
                request = bodies.QosSet.decode(body)
                held["limit"] = (request.min_mbps, request.max_mbps)
                return wire.Reply(0).encode()
            case UrmaOp.QOS_GET:
                limit = held.get("limit")
                return wire.Reply(0, bodies.encode_limits(*limit)).encode() if limit else wire.Reply(1007).encode()
            case _:
                held.pop("limit", None)
                return wire.Reply(0).encode()

    server.handler = handle
    yield server
    server.close()

"""A UBSE that a test plays: real unix socket, answers from a function."""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ubhost.ubse import wire

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

"""Where the daemon answers people: a root-only socket for ``ubnode qos``, and HTTP for Prometheus and probes."""

import contextlib
import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from nri_qos.config import host_and_port
from nri_qos.latency import Latencies
from nri_qos.report import Report
from ubhost.errors import HostFault, NotFound

SOCKET = "nri-qos.sock"
TIMEOUT_S = 5.0
_log = logging.getLogger(__name__)

Answer = tuple[int, str, bytes]  # status, content type, body


def ask(folder: Path) -> dict[str, Any]:
    """Return what the daemon of this node tells, see ``StatusSocket``.

    Raises:
        NotFound: none runs.
        HostFault: it does not answer.
    """
    path = folder / SOCKET
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(TIMEOUT_S)
            peer.connect(str(path))
            with peer.makefile("rb") as answer:
                content = json.load(answer)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise NotFound(f"nri-qos does not run on this node: nobody answers at {path}") from error
    except (OSError, ValueError) as error:
        raise HostFault(f"nri-qos does not answer at {path}: {error}") from error
    assert isinstance(content, dict)
    return content


class StatusSocket(threading.Thread):
    """Writes ``{"state": …, "pods": […]}`` to everyone who connects. The folder is root's alone."""

    def __init__(self, folder: Path, report: Report) -> None:
        super().__init__(name="status", daemon=True)
        self._report = report
        path = folder / SOCKET
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            path.unlink(missing_ok=True)
            before = os.umask(0o177)
            try:
                self._listener.bind(str(path))
            finally:
                os.umask(before)
            self._listener.listen(8)
        except OSError as error:
            self._listener.close()
            raise HostFault(f"cannot listen at {path}: {error}") from error

    def run(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer:
                self._answer(peer)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _answer(self, peer: socket.socket) -> None:
        try:
            peer.settimeout(TIMEOUT_S)
            content = {"state": self._report.state(), "pods": self._report.pods()}
            peer.sendall(json.dumps(content).encode())
        except OSError as error:
            _log.debug("nobody waited for the status", extra={"error": str(error)})


class WebServer:
    """/metrics, /healthz and /readyz on ``address``."""

    def __init__(self, address: str, report: Report, latencies: Latencies) -> None:
        """Listen.

        Raises:
            HostFault: it is taken, or not ours.
        """
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        from nri_qos.metrics import Exposition

        registry = CollectorRegistry()
        registry.register(Exposition(report, latencies))
        ProcessCollector(registry=registry)

        def answer(path: str) -> Answer:
            match path.partition("?")[0]:
                case "/metrics":
                    return 200, "text/plain; version=0.0.4; charset=utf-8", generate_latest(registry)
                case "/healthz":
                    return 200, "text/plain", b"ok\n"
                case "/readyz":
                    why = report.not_ready()
                    return (200, "text/plain", b"ok\n") if why is None else (503, "text/plain", f"{why}\n".encode())
                case _:
                    return 404, "text/plain", b"there are /metrics, /healthz and /readyz\n"

        host, port = host_and_port(address)
        try:
            self._server = _server(host, port, answer)
        except OSError as error:
            raise HostFault(f"cannot serve metrics at {address}: {error.strerror or error}") from error
        threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()
        _log.info("serving metrics and probes", extra={"port": self._server.server_address[1]})

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _server(host: str, port: int, answer: Callable[[str], Answer]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds

        def do_GET(self) -> None:
            status, kind, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the library's name
            _log.debug("http", extra={"request": format % arguments})

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    return Server((host, port), Handler)

"""/metrics, /healthz and /readyz over HTTP. Off unless the configuration gives an address."""

import json
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cni_ub.agent.metrics import Exposition
from cni_ub.agent.service import Service
from ubhost.errors import HostFault

log = logging.getLogger(__name__)


class WebServer:
    """A ``Service`` of the agent."""

    name = "metrics and probes"

    def __init__(
        self, address: tuple[str, int], exposition: Exposition, services: Callable[[], Sequence[Service]]
    ) -> None:
        self._address = address
        self._exposition = exposition
        self._services = services
        self._is_stopping = False
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        return self._server.server_address[1] if self._server else 0

    def start(self) -> None:
        """Listen.

        Raises:
            HostFault: the address is taken, or not ours.
        """
        from prometheus_client import CollectorRegistry, ProcessCollector

        registry = CollectorRegistry()
        registry.register(self._exposition)
        ProcessCollector(registry=registry)
        try:
            self._server = _server(self._address, lambda path: _answer(path, registry, self._services))
        except OSError as error:
            raise HostFault(f"cannot serve metrics at {':'.join(map(str, self._address))}: {error.strerror}") from error
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, args=(self._server,), name=self.name, daemon=True)
        self._thread.start()
        log.info("serving metrics", extra={"address": self._address[0], "port": self.port})

    def _run(self, server: ThreadingHTTPServer) -> None:
        """Answer until the stop. ``serve_forever`` would wake up all the time to see whether it should end."""
        while not self._is_stopping:
            server.handle_request()

    def stop(self) -> None:
        if self._server and self._thread:
            self._is_stopping = True
            here = (str(self._server.server_address[0]), self.port)
            with suppress(OSError), socket.create_connection(here, timeout=1):
                pass  # one more caller, so that it looks
            self._thread.join()
            self._server.server_close()
            self._server = self._thread = None

    def ready(self) -> str | None:
        return None if self._server else "not listening"


Answer = tuple[int, str, bytes]  # status, content type, body


def _answer(path: str, registry: Any, services: Callable[[], Sequence[Service]]) -> Answer:
    match path.partition("?")[0]:
        case "/metrics":
            from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

            return 200, CONTENT_TYPE_LATEST, generate_latest(registry)
        case "/healthz":
            return 200, "text/plain", b"ok\n"
        case "/readyz":
            why = {service.name: reason for service in services() if (reason := service.ready())}
            return (
                (503 if why else 200),
                "application/json",
                json.dumps({"ready": not why, "why": why}).encode() + b"\n",
            )
        case _:
            return 404, "text/plain", b"there are /metrics, /healthz and /readyz\n"


def _server(address: tuple[str, int], answer: Callable[[str], Answer]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds; a caller that says nothing does not hold a thread for ever

        def do_GET(self) -> None:
            status, content_type, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            log.debug("metrics were asked for", extra={"request": format % args})

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = _family(address[0])

    return Server(address, Handler)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET

"""/metrics, /healthz and /readyz of a daemon over HTTP. Off unless the configuration gives an address.

``prometheus_client`` and ``http.server`` are loaded only where somebody may ask: they cost 10 MiB and 30 ms.
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ubhost.address import host_and_port
from ubhost.errors import HostFault

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

log = logging.getLogger(__name__)

Answer = tuple[int, str, bytes]  # status, content type, body
OK: Answer = (200, "text/plain", b"ok\n")


def is_ready(why_not: str | None) -> Answer:
    """Return what /readyz says of a daemon that is ready, or of one that is not and says why."""
    return OK if why_not is None else (503, "text/plain", f"{why_not}\n".encode())


class WebServer:
    """Answers in threads of its own between ``start`` and ``stop``.

    ``collectors`` are Prometheus collectors; the process's own figures come with them. ``ready`` is asked at every
    look at /readyz.
    """

    def __init__(self, address: str, collectors: Iterable[Any], ready: Callable[[], Answer]) -> None:
        self._address = address
        self._collectors = tuple(collectors)
        self._ready = ready
        self._is_stopping = False
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port it listens on, 0 while it does not."""
        return self._server.server_address[1] if self._server else 0

    def start(self) -> None:
        """Listen.

        Raises:
            HostFault: the address is taken, or not ours.
        """
        from prometheus_client import CollectorRegistry, ProcessCollector

        registry = CollectorRegistry()
        for collector in self._collectors:
            registry.register(collector)
        ProcessCollector(registry=registry)
        try:
            self._server = _server(*host_and_port(self._address), lambda path: self._answer(path, registry))
        except OSError as error:
            raise HostFault(f"cannot serve metrics at {self._address}: {error.strerror or error}") from error
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, args=(self._server,), name="http", daemon=True)
        self._thread.start()
        log.info("serving metrics and probes", extra={"address": self._address, "port": self.port})

    def stop(self) -> None:
        if self._server and self._thread:
            self._is_stopping = True
            here = (host_and_port(self._address)[0] or "127.0.0.1", self.port)
            with suppress(OSError), socket.create_connection(here, timeout=1):
                pass  # one more caller, so that it looks
            self._thread.join()
            self._server.server_close()
            self._server = self._thread = None

    def _run(self, server: "ThreadingHTTPServer") -> None:
        """Answer until the stop. ``serve_forever`` would wake up all the time to see whether it should end."""
        while not self._is_stopping:
            server.handle_request()

    def _answer(self, path: str, registry: Any) -> Answer:
        match path.partition("?")[0]:
            case "/metrics":
                from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

                return 200, CONTENT_TYPE_LATEST, generate_latest(registry)
            case "/healthz":
                return OK
            case "/readyz":
                return self._ready()
            case _:
                return 404, "text/plain", b"there are /metrics, /healthz and /readyz\n"


def _server(host: str, port: int, answer: Callable[[str], Answer]) -> "ThreadingHTTPServer":
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from socketserver import TCPServer

    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds; a caller that says nothing does not hold a thread for ever

        def do_GET(self) -> None:
            status, kind, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the library's name
            log.debug("http", extra={"request": format % arguments})

    has_both = not host and socket.has_dualstack_ipv6()

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in host or has_both else socket.AF_INET

        def server_bind(self) -> None:
            if has_both:
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            TCPServer.server_bind(self)  # the library's own asks DNS for our name, and waits for it

    return Server((host, port), Handler)

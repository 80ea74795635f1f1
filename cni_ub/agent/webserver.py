"""/metrics, /healthz and /readyz of the agent. Off unless the configuration gives an address."""

import json
from collections.abc import Callable, Sequence

from cni_ub.agent.metrics import Exposition
from cni_ub.agent.service import Service
from ubhost import webserver


class WebServer:
    """A ``Service`` of the agent. It is ready when all its parts are; /readyz names the others, as JSON."""

    name = "metrics and probes"

    def __init__(self, address: str, exposition: Exposition, services: Callable[[], Sequence[Service]]) -> None:
        self._server = webserver.WebServer(address, [exposition], lambda: _parts(services()))

    @property
    def port(self) -> int:
        return self._server.port

    def start(self) -> None:
        """Listen.

        Raises:
            HostFault: the address is taken, or not ours.
        """
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def ready(self) -> str | None:
        return None if self._server.port else "not listening"


def _parts(services: Sequence[Service]) -> webserver.Answer:
    why = {service.name: reason for service in services if (reason := service.ready())}
    return (503 if why else 200), "application/json", json.dumps({"ready": not why, "why": why}).encode() + b"\n"

"""``ub-agent``: the node daemon for networking."""

import argparse
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cni_ub.agent import checkup
from cni_ub.agent.config import AgentConfig
from cni_ub.agent.metrics import Calls
from cni_ub.agent.reconciler import Reconciler
from cni_ub.agent.server import Server
from cni_ub.agent.service import Service
from cni_ub.agent.services import services
from cni_ub.host import Host
from cni_ub.kubelet import devices_of
from ubhost import config, log, providers
from ubhost.errors import Busy, InvalidRequest, UbError
from ubhost.filelock import locked
from ubhost.ledger import Ledger
from ubhost.notify import Manager
from ubhost.provider import Provider
from ubhost.roots import Roots
from ubhost.signals import until_told
from ubhost.version import version

LOG = logging.getLogger("cni_ub.agent")


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM; return 0, 1 if it cannot start, 2 if it is told nonsense."""
    arguments = _parser().parse_args(argv)
    try:
        settings = config.load(arguments.config, AgentConfig)
    except InvalidRequest as error:
        print(f"ub-agent: {error}", file=sys.stderr)
        return 2
    log.set_up(settings.log_level)
    try:
        roots = Roots.from_environ()
        with locked(roots.run / "agent.lock", waits=False):  # before anything of ours takes kubelet's sockets from it
            _run(settings, roots, until_told())
    except Busy as error:
        print(f"ub-agent: another ub-agent is at work on this host: {error}", file=sys.stderr)
        return 1
    except UbError as error:
        print(f"ub-agent: {error}", file=sys.stderr)
        return 1
    return 0


def _run(settings: AgentConfig, roots: Roots, stop: threading.Event) -> None:
    manager = Manager.from_environ()
    started: list[Service] = []
    try:
        for service in _services(settings, roots):
            started.append(service)
            service.start()
        LOG.info("ready", extra={"socket": str(roots.agent_socket), "version": version()})
        checkup.begin(roots)
        with manager.serving(f"answering at {roots.agent_socket}"):
            stop.wait()
    finally:
        LOG.info("stopping")
        for service in reversed(started):
            service.stop()


def _services(settings: AgentConfig, roots: Roots) -> tuple[Service, ...]:
    """Return the parts in the order in which they start. The socket is last, so that it closes first."""

    choose = Kept(lambda: providers.choose(roots, settings.provider))
    names = [resource.name for resource in settings.resources]
    asked = devices_of(roots, names, settings.kubelet.folder) if settings.kubelet.is_used else None
    ledger, calls = Ledger(roots), Calls()
    host = Host(roots, ledger, choose, asked)
    server = Server(roots.agent_socket, host, settings.workers, calls)
    reconciler = Reconciler(host, settings.reconcile_period)
    beside = services(settings, roots, choose, ledger, (server, reconciler), calls)
    return (*beside, reconciler, server)


class Kept:
    """One provider for all calls, chosen again now and then: a driver may be loaded, or a simulator restarted."""

    LIFE = 10.0  # seconds

    def __init__(self, choose: Callable[[], Provider]) -> None:
        self._choose = choose
        self._provider: Provider | None = None
        self._until = 0.0

    def __call__(self) -> Provider:
        provider = self._provider
        if provider is None or time.monotonic() > self._until:
            provider = self._provider = self._choose()
            self._until = time.monotonic() + self.LIFE
        return provider


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ub-agent", description="UB node agent: answers CNI calls without start-up cost"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML configuration (default: none)")
    parser.add_argument("--version", action="version", version=f"ub-agent {version()}")
    return parser


if __name__ == "__main__":
    sys.exit(main())

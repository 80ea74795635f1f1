"""``ub-agent``: the node daemon for networking."""

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from cni_ub.agent.config import AgentConfig
from cni_ub.agent.server import Server
from cni_ub.agent.service import Service
from cni_ub.host import Host
from ubhost import config, log, providers
from ubhost.errors import InvalidRequest, UbError
from ubhost.ledger import Ledger
from ubhost.provider import Provider
from ubhost.roots import Roots
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
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _, __: stop.set())
    try:
        _run(settings, stop)
    except UbError as error:
        print(f"ub-agent: {error}", file=sys.stderr)
        return 1
    return 0


def _run(settings: AgentConfig, stop: threading.Event) -> None:
    roots = Roots.from_environ()
    started: list[Service] = []
    try:
        for service in _services(settings, roots):
            started.append(service)
            service.start()
        LOG.info("ready", extra={"socket": str(roots.agent_socket), "version": version()})
        stop.wait()
    finally:
        LOG.info("stopping")
        for service in reversed(started):
            service.stop()


def _services(settings: AgentConfig, roots: Roots) -> tuple[Service, ...]:
    def choose() -> Provider:
        return providers.choose(roots, settings.provider)

    host = Host(roots, Ledger(roots), choose)
    return (Server(roots.agent_socket, host, settings.workers, lambda verb, succeeded, seconds: None),)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ub-agent", description="UB node agent: answers CNI calls without start-up cost"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML configuration (default: none)")
    parser.add_argument("--version", action="version", version=f"ub-agent {version()}")
    return parser


if __name__ == "__main__":
    sys.exit(main())

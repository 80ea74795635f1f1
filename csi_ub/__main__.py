"""``ub-csi``: reads its arguments once, wires the parts together, serves until SIGTERM."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from csi_ub import DRIVER, VERSION
from csi_ub.config import Config
from csi_ub.driver import Mode, prepare
from csi_ub.forward import ToOwner
from csi_ub.server import Server, socket_path
from ubhost.config import load
from ubhost.errors import InvalidRequest, UbError
from ubhost.log import set_up
from ubhost.notify import Manager
from ubhost.roots import Roots
from ubhost.signals import until_told

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(prog="ub-csi", description=f"CSI driver {DRIVER}")
    arguments.add_argument("--mode", choices=[mode.value for mode in Mode], default="all", help="services to offer")
    arguments.add_argument(
        "--endpoint",
        default=os.environ.get("CSI_ENDPOINT"),
        metavar="unix:///PATH",
        help="socket to serve on (default: $CSI_ENDPOINT)",
    )
    arguments.add_argument("--node-id", required=True, metavar="N", help="name of this node in the cluster")
    arguments.add_argument("--config", type=Path, metavar="FILE", help="YAML with pools, peers, log_level")
    arguments.add_argument("--version", action="version", version=f"ub-csi {VERSION}")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return 0 then, 1 if it cannot serve, 2 for wrong arguments or configuration."""
    arguments = parser().parse_args(argv)
    manager = Manager.from_environ()  # before a data daemon is started, which must not speak for us
    try:
        path = socket_path(arguments.endpoint or "")
        config = load(arguments.config, Config)
        set_up(config.log_level)
        driver = prepare(Mode(arguments.mode), arguments.node_id, config, Roots.from_environ())
        server = Server(path, driver.services, driver.observe, [ToOwner(driver.peers)])
    except UbError as error:
        print(f"ub-csi: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidRequest) else 1
    server.run(until_told(), manager)  # data daemons are not ours to stop: they outlive the driver
    return 0


if __name__ == "__main__":
    sys.exit(main())

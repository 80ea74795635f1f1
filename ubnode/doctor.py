"""``ubnode doctor``: what the host's own doctor finds, and whether each daemon takes its configuration on this node."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cni_ub.agent.config import AgentConfig
from csi_ub.config import Config as CsiConfig
from nri_qos import observe, pools
from nri_qos.config import Config as NriConfig
from ubhost import config
from ubhost.doctor import cli
from ubhost.doctor.findings import Finding, problem
from ubhost.errors import HostFault, InvalidRequest
from ubhost.roots import Roots

FILES: dict[str, tuple[str, type[Any]]] = {
    "ub-agent": ("agent.yaml", AgentConfig),
    "ub-csi": ("csi.yaml", CsiConfig),
    "nri-qos": ("nri.yaml", NriConfig),
}


def main(argv: Sequence[str]) -> int:
    return cli.main(argv, configurations)


def configurations(roots: Roots) -> Iterator[Finding]:
    """Yield what is wrong with the configuration files on this node; who has none there is configured elsewhere."""
    for daemon, (name, kind) in FILES.items():
        path = roots.etc / "ub-node" / name
        if not os.path.lexists(path) or (os.geteuid() != 0 and not os.access(path, os.R_OK)):
            continue
        if why := _trouble(roots, path, kind):
            yield problem(
                "configuration",
                f"{daemon} does not take its configuration",
                why,
                f"correct {path}, and systemctl restart {daemon}",
            )


def _trouble(roots: Roots, path: Path, kind: type[Any]) -> str | None:
    try:
        settings = config.load(path, kind)
        return pools.misfit(observe.read_machine(roots.sys), settings) if isinstance(settings, NriConfig) else None
    except InvalidRequest as error:
        return str(error)
    except HostFault:
        return None  # of a machine that cannot be read others tell

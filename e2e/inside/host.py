"""The simulated UB host of this node, and everything that a pod must give back to it."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.inside.cri import Pod
from e2e.inside.network import links, reserved_addresses
from e2e.inside.programs import BUNDLE

SUPERNODE = Path("/run/ubsim")
ROOT = SUPERNODE / "node0"  # containerd hands it to CNI plugins as UB_ROOT
SCENARIO = "{name: e2e, nodes: [{name: node0, devices: %d}]}\n"
NO_EID = "0000:0000:0000:0000:0000:0000:0000:0000"


def ubnode(*arguments: str) -> str:
    """Return what our command line says about the simulated host."""
    done = subprocess.run(
        [str(BUNDLE / "ubnode"), *arguments],
        env={"PATH": os.environ["PATH"], "UB_ROOT": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"ubnode {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def simulated_host(devices: int) -> Iterator[None]:
    """Bring the node's super-node up, with so many URMA devices to hand out."""
    scenario = Path("/tmp/scenario.yaml")
    scenario.write_text(SCENARIO % devices)
    ubnode("sim", "up", "--scenario", str(scenario), "--root", str(SUPERNODE))
    try:
        yield
    finally:
        ubnode("sim", "down", "--root", str(SUPERNODE))


def attachments() -> list[dict[str, Any]]:
    """Return who holds which device, from the ledger."""
    found: list[dict[str, Any]] = json.loads(ubnode("attachments", "--json"))["attachments"]
    return found


def eids_in(pod: Pod) -> dict[str, set[str]]:
    """Return the EIDs that the driver shows inside a pod's namespace, by kernel device."""
    view = ROOT / "run/ubsim/netns" / str(pod.netns.stat().st_ino) / "class/ubcore"
    return _eids(view)


def _eids(folder: Path) -> dict[str, set[str]]:
    seen: dict[str, set[str]] = {}
    for path in folder.glob("*/eids/eid*"):
        file = path / "eid" if path.is_dir() else path
        if (eid := file.read_text().strip()) != NO_EID:
            seen.setdefault(path.parent.parent.name, set()).add(eid)
    return seen


@dataclass(frozen=True)
class Belongings:
    """All that pods borrow from the host: equal before a pod and after it, or something leaked."""

    links: dict[str, tuple[str, int, bool]]  # name -> MAC, MTU, is up
    eids: dict[str, set[str]]
    addresses: set[str]
    holders: list[dict[str, Any]]
    namespaces: set[str]

    @classmethod
    def now(cls) -> "Belongings":
        return cls(
            links={
                name: (link["address"], link["mtu"], "UP" in link["flags"])
                for name, link in links().items()
                if name != "cni0"  # the bridge plugin makes it with the first pod and keeps it
            },
            eids=_eids(ROOT / "sys/class/ubcore"),
            addresses=reserved_addresses(),
            holders=attachments(),
            namespaces={path.name for path in Path("/run/netns").glob("*")},
        )

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
from e2e.inside.programs import BUNDLE, daemon
from ubsim.kubelet import Kubelet

SUPERNODE = Path("/run/ubsim")
ROOT = SUPERNODE / "node0"  # containerd hands it to CNI plugins as UB_ROOT
SCENARIO = "{name: e2e, nodes: [{name: node0, devices: %d}]}\n"
RESOURCE = "unifiedbus.com/ub_net_device"
DISK = Path("/var/lib/ub-e2e/node0")  # what survives a reboot of the simulated host
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
    """Bring the node's super-node up, with so many URMA devices to hand out.

    The simulator lies on tmpfs; the host's ``/var/lib`` is put on the disk, as on a real one.
    """
    scenario = Path("/tmp/scenario.yaml")
    scenario.write_text(SCENARIO % devices)
    ubnode("sim", "up", "--scenario", str(scenario), "--root", str(SUPERNODE))
    state = ROOT / "var/lib"
    for folder in (DISK, state):
        folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--bind", str(DISK), str(state)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(state)], check=True)
        ubnode("sim", "down", "--root", str(SUPERNODE))


@contextmanager
def agent_and_kubelet(devices: int, *arguments: str) -> Iterator[Kubelet]:
    """Run the node daemon, and a kubelet that it tells of its devices and asks whom they were given to."""
    kubelet = Kubelet(ROOT / "var/lib/kubelet")
    kubelet.start()
    try:
        with daemon("ub-agent", *arguments, env={"UB_ROOT": str(ROOT)}):
            kubelet.wait_for(RESOURCE, healthy=devices, timeout_s=240)
            yield kubelet
    finally:
        kubelet.stop()


def admit(kubelet: Kubelet, pod: str) -> str:
    """Let the kubelet give a pod (its name in namespace default) one device; return which."""
    kubelet.admit(f"default/{pod}", {"main": {RESOURCE: 1}})
    (device,) = kubelet.pods[f"default/{pod}"]["main"][RESOURCE]
    return device


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
    ledger: set[str]
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
            addresses=set(reserved_addresses()),
            ledger={path.name for path in (ROOT / "var/lib/ub-node/attachments").glob("*")},
            namespaces={path.name for path in Path("/run/netns").glob("*")},
        )

    def differs_from(self, other: "Belongings") -> list[str]:
        """Say what is different, item by item; nothing when all is as it was."""
        found = []
        for field in ("links", "eids", "addresses", "ledger", "namespaces"):
            now, was = _items(getattr(self, field)), _items(getattr(other, field))
            found += [
                f"{field}: {item}: was {was.get(item, 'absent')}, is {now.get(item, 'absent')}"
                for item in sorted(now.keys() | was.keys())
                if now.get(item, "absent") != was.get(item, "absent")
            ]
        return found


def _items(value: dict[str, Any] | set[str]) -> dict[str, Any]:
    return value if isinstance(value, dict) else dict.fromkeys(value, "here")

"""What a scheduler should know of this node, as the file that Node Feature Discovery turns into labels.

A label is for choosing nodes, so it holds what is true for long: where the node is and how much of what it has. What
changes by the minute is in the metrics. None is of the domain topology.unifiedbus.com: those are ub-csi's, set by
kubelet, which refuses a driver whose label has another value already.

Source: Node Feature Discovery, "local" feature source; design section 6.
"""

import re

from cni_ub.agent import watchedfolder
from cni_ub.agent.inventory import Snapshot
from ubhost.roots import Roots

_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def labels(snapshot: Snapshot) -> dict[str, str]:
    """Return the labels of a node, values made fit for Kubernetes; what is not known has none."""
    healthy = sum(state.is_healthy for state in snapshot.devices)
    nodes = {state.device.numa for state in snapshot.devices if state.device.numa is not None}
    speeds = [die.bandwidth_mbps for die in snapshot.dies]
    found: dict[str, object] = {
        "unifiedbus.com/super-node": snapshot.position.super_node_id,
        "unifiedbus.com/slot": snapshot.position.slot_id,
        "unifiedbus.com/level": snapshot.level.replace(" ", "-"),
        "unifiedbus.com/devices": len(snapshot.devices),
        "unifiedbus.com/devices-healthy": healthy,
        "unifiedbus.com/planes": len(snapshot.dies) or None,
        "unifiedbus.com/bandwidth-mbps": sum(speed or 0 for speed in speeds) or None,
        "unifiedbus.com/numa": "_".join(map(str, sorted(nodes))),
    }
    texts = {name: str(value) for name, value in found.items() if value not in (None, "")}
    return {name: text for name, text in texts.items() if _VALUE.fullmatch(text)}


class FeatureFile:
    """The file of one host. Nothing is written where Node Feature Discovery is not installed."""

    def __init__(self, roots: Roots) -> None:
        self.path = roots.etc / "kubernetes" / "node-feature-discovery" / "features.d" / "ub-node"

    def update(self, snapshot: Snapshot) -> None:
        """Make the file say what the node is now.

        Raises:
            HostFault: it cannot be written.
        """
        if not self.path.parent.parent.is_dir():
            return
        watchedfolder.make(self.path.parent)
        lines = [f"{name}={value}\n" for name, value in labels(snapshot).items()]
        watchedfolder.put(self.path, "".join(lines).encode())

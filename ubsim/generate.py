"""Write a scenario file for a super-node of a given size: ``ubnode sim generate``. Pure."""

import yaml

from ubhost.errors import InvalidRequest
from ubsim import consistency, expansion
from ubsim.scenario import NodeEntry, ScenarioFile, Wiring


def generate(nodes: int, devices: int, *, wiring: Wiring = Wiring.AUTO, super_node_id: int = 1) -> str:
    """Return the text of a scenario with ``nodes`` nodes of ``devices`` devices each.

    Raises:
        InvalidRequest: there can be no such super-node; every reason is named.
    """
    if nodes < 1:
        raise InvalidRequest(f"{nodes} nodes are not 1 to {consistency.MAX_NODES}")
    name = f"generated-{nodes}x{devices}"
    stem = "node0" if nodes == 1 else "node"
    entry = NodeEntry(stem, count=nodes, devices=devices)
    file = ScenarioFile(name, (entry,), super_node_id, wiring=wiring)
    consistency.refuse_impossible(expansion.expand(file, where=name), where=name)
    content = {
        "name": name,
        "super_node_id": super_node_id,
        "wiring": wiring.value,
        "nodes": [{"name": stem, "count": nodes, "devices": devices}],
    }
    head = f"# {nodes} nodes with {devices} URMA devices each, made by: ubnode sim generate\n"
    return head + yaml.safe_dump(content, sort_keys=False)

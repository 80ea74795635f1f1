"""The topology for Graphviz: ``ubnode show topology --dot | dot -Tpdf``. Pure."""

from collections.abc import Iterator

from ubhost.discovery import Discovery
from ubhost.show.table import ranges, rate, size
from ubhost.topology import Die, Topology


def graph(found: Discovery) -> str:
    """Return an undirected graph: nodes of the super-node, and the dies, devices and NUMA nodes of this one."""
    lines = [
        "graph topology {",
        f'  label="provider {found.kind.value}, level {found.level.value}";',
        '  node [shape=box, style=rounded, fontname="sans-serif"];',
        *_super_node(found.topology),
        *_inside(found),
        "}",
    ]
    return "\n".join(lines)


def _super_node(shown: Topology) -> Iterator[str]:
    for node in shown.nodes:
        own = ", style=filled, fillcolor=lightblue" if node.hops == 0 else ""
        yield f"  {_quoted(f'slot {node.slot_id}')} [label={_quoted(f'{node.host_name} (slot {node.slot_id})')}{own}];"
    for low, high in sorted(shown.links):
        yield f"  {_quoted(f'slot {low}')} -- {_quoted(f'slot {high}')};"


def _inside(found: Discovery) -> Iterator[str]:
    shown = found.topology
    yield "  subgraph cluster_node {"
    yield f"    label={_quoted(shown.position.host_name or 'this node')};"
    for die in shown.dies:
        yield f"    {_quoted(f'die {die.controller}')} [label={_quoted(_die(die))}];"
        if die.numa is not None:
            yield f"    {_quoted(f'die {die.controller}')} -- {_quoted(f'numa {die.numa}')} [style=dotted];"
    for node in shown.numa:
        cpus = "memory only" if node.is_cpuless else f"CPUs {ranges(node.cpus)}"
        label = f"NUMA {node.id}\n{cpus}\n{size(node.memory_total)}"
        yield f"    {_quoted(f'numa {node.id}')} [shape=component, label={_quoted(label)}];"
    for device in found.devices:
        colour = "" if device.is_healthy else ", color=red"
        yield f"    {_quoted(device.id)} [shape=ellipse{colour}];"
        for die in shown.dies:
            for member in device.members:
                if member in die.devices:
                    yield f"    {_quoted(device.id)} -- {_quoted(f'die {die.controller}')} [label={_quoted(member)}];"
    yield "  }"
    for die in shown.dies:
        for port in die.links:
            far = port.peer or "outside"
            yield f"  {_quoted(f'die {die.controller}')} -- {_quoted(far)} [taillabel={port.index}];"


def _die(die: Die) -> str:
    return f"die {die.controller}\nplane {die.plane}\n{len(die.links)}/{len(die.ports)} up, {rate(die.bandwidth_mbps)}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

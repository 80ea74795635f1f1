"""The topology as a picture: the super-node on the left, the inside of this node on the right. Pure.

Colours say state only where a word says it too. The picture stands alone: no script, no font, no link.
"""

import math
from collections.abc import Iterable, Iterator
from xml.sax.saxutils import escape, quoteattr

from ubhost.discovery import Discovery, Level
from ubhost.model import NumaNode
from ubhost.provider import Device
from ubhost.show.table import ranges, rate, size
from ubhost.topology import Die, Node, Port, Topology

INK, SOFT, LINE, PAPER = "#1c2733", "#5b6b7b", "#c9d3dc", "#ffffff"
UP, DOWN, OWN = "#1a7f4b", "#b9c2cb", "#0b5cad"
BAD = "#b3261e"
TINTS = ("#dcebfa", "#fdecc8", "#e0f3e4", "#f3e1f4", "#fbdfd6", "#dff3f3", "#ece8d5", "#e4e4fb")

MARGIN, GAP = 24, 20
RING_WIDTH = 460
DIE_WIDTH, TAG_HEIGHT, PORT_STEP = 300, 24, 30
NUMA_HEIGHT = 92
MAX_NAMED = 64  # nodes whose names still fit on the ring

_LEVELS = {
    Level.MODEL: "a model in memory, not a UB machine",
    Level.STAND_IN: "from the simulator: no figure here is a UB figure",
    Level.SOFT_DEVICE: "from a soft device: no figure here is a UB figure",
    Level.HARDWARE: "from hardware",
}


def picture(found: Discovery) -> str:
    """Return a complete SVG document."""
    shown = found.topology
    columns = max(1, min(len(shown.dies), 2))
    inside = columns * DIE_WIDTH + (columns - 1) * GAP + 2 * GAP
    has_ring = len(shown.nodes) > 1
    left = MARGIN + (RING_WIDTH + GAP if has_ring else 0)
    body, height = _inside(found, left, 76, inside, columns, least=RING_WIDTH if has_ring else 0)
    width = left + inside + MARGIN
    parts = [
        _text(MARGIN, 34, _title(found), size_px=20, weight=600),
        _text(MARGIN, 56, f"provider {found.kind.value}, {_LEVELS[found.level]}", fill=SOFT),
        *(_ring(shown, MARGIN, 76) if has_ring else ()),
        *body,
        *_legend(MARGIN, height + 34),
    ]
    return _document(width, height + 56, _title(found), parts)


def _title(found: Discovery) -> str:
    position = found.topology.position
    name = position.host_name or "this node"
    return (
        name if position.slot_id is None else f"{name}, slot {position.slot_id} of super-node {position.super_node_id}"
    )


# The super-node


def _ring(shown: Topology, x: float, y: float) -> Iterator[str]:
    """Nodes on a circle, the own one on top; a line where UBSE says that two reach each other directly."""
    yield _box(x, y, RING_WIDTH, RING_WIDTH, title="SUPER-NODE")
    own = next((at for at, node in enumerate(shown.nodes) if node.hops == 0), 0)
    nodes = (*shown.nodes[own:], *shown.nodes[:own])
    radius = RING_WIDTH / 2 - 78
    at = {
        node.slot_id: _on_circle(x + RING_WIDTH / 2, y + RING_WIDTH / 2 + 8, radius, index / len(nodes))
        for index, node in enumerate(nodes)
    }
    for low, high in sorted(shown.links):
        if low in at and high in at:
            mine = nodes[0].slot_id in (low, high)
            yield _line(at[low], at[high], OWN if mine else LINE, 1.8 if mine else 0.9)
    for index, node in enumerate(nodes):
        yield from _ring_node(node, at[node.slot_id], index / len(nodes), named=len(nodes) <= MAX_NAMED)


def _ring_node(node: Node, at: tuple[float, float], turn: float, *, named: bool) -> Iterator[str]:
    own = node.hops == 0
    fill = OWN if own else PAPER if node.hops is not None else "#f0f2f4"
    tip = f"{node.host_name}, slot {node.slot_id}, {_hops(node.hops)}"
    yield (
        f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{15 if own else 11}" fill="{fill}"'
        f' stroke="{OWN if node.hops is not None else DOWN}" stroke-width="2"><title>{escape(tip)}</title></circle>'
    )
    yield _text(at[0], at[1] + 4, str(node.slot_id), size_px=10, fill=PAPER if own else INK, anchor="middle")
    if named:
        angle = _angle(turn)
        outside = (at[0] + 22 * math.cos(angle), at[1] + 22 * math.sin(angle) + 4)
        anchor = "middle" if abs(math.cos(angle)) < 0.3 else "start" if math.cos(angle) > 0 else "end"
        yield _text(*outside, node.host_name[:14], size_px=11, anchor=anchor, weight=600 if own else 400)


def _hops(hops: int | None) -> str:
    return "no way known" if hops is None else "this node" if hops == 0 else f"{hops} hop{'s' if hops > 1 else ''} away"


def _on_circle(cx: float, cy: float, radius: float, turn: float) -> tuple[float, float]:
    return cx + radius * math.cos(_angle(turn)), cy + radius * math.sin(_angle(turn))


def _angle(turn: float) -> float:
    return 2 * math.pi * turn - math.pi / 2


# The node


def _inside(
    found: Discovery, x: float, y: float, width: float, columns: int, *, least: float
) -> tuple[list[str], float]:
    """Dies with ports and devices, and below them the NUMA nodes. Returns the parts and where they end."""
    shown = found.topology
    tints = {device.id: TINTS[index % len(TINTS)] for index, device in enumerate(found.devices)}
    parts: list[str] = []
    top = y + 40
    for row in range(0, len(shown.dies), columns):
        heights = []
        for column, die in enumerate(shown.dies[row : row + columns]):
            left = x + GAP + column * (DIE_WIDTH + GAP)
            drawn, bottom = _die(die, _devices_on(die, found.devices), tints, left, top)
            parts += drawn
            heights.append(bottom)
        top = max(heights) + GAP
    numa, bottom = _numa(shown.numa, x + GAP, top, width - 2 * GAP)
    parts += numa
    bottom = max(bottom + GAP, y + least)
    name = shown.position.host_name or "this node"
    return [_box(x, y, width, bottom - y, title=f"INSIDE {name.upper()}"), *parts], bottom


def _devices_on(die: Die, devices: Iterable[Device]) -> list[tuple[Device, str]]:
    """Return the devices that pods are given which have a member on this die, with that member."""
    return [(device, member) for device in devices for member in device.members if member in die.devices]


def _die(
    die: Die, devices: list[tuple[Device, str]], tints: dict[str, str], x: float, y: float
) -> tuple[list[str], float]:
    per_row = int((DIE_WIDTH - 24) // PORT_STEP)
    port_rows = -(-len(die.ports) // per_row)
    tag_rows = -(-len(devices) // 2)
    height = 60 + port_rows * 34 + tag_rows * (TAG_HEIGHT + 6)
    numa = "" if die.numa is None else f", NUMA {die.numa}"
    parts = [
        f'<rect x="{x}" y="{y}" width="{DIE_WIDTH}" height="{height}" rx="8" fill="#f7f9fb" stroke="{LINE}"/>',
        _text(x + 12, y + 22, f"Die {die.controller}", weight=600),
        _text(x + DIE_WIDTH - 12, y + 22, f"plane {die.plane}{numa}", fill=SOFT, anchor="end"),
        _text(
            x + 12,
            y + 40,
            f"{len(die.links)} of {len(die.ports)} ports up, {rate(die.bandwidth_mbps)} nominal",
            fill=SOFT,
        ),
    ]
    for index, port in enumerate(die.ports):
        row, column = divmod(index, per_row)
        parts.append(_port(port, x + 26 + column * PORT_STEP, y + 64 + row * 34))
    top = y + 54 + port_rows * 34
    for index, (device, member) in enumerate(devices):
        row, column = divmod(index, 2)
        parts += _tag(device, member, tints, x + 12 + column * 140, top + row * (TAG_HEIGHT + 6))
    return parts, y + height


def _port(port: Port, x: float, y: float) -> str:
    state = "up" if port.is_up else "down"
    far = port.peer or ("outside this domain" if port.is_boundary else "nobody")
    tip = f"port {port.index} {state}, to {far}" + ("" if port.peer_port is None else f" port {port.peer_port}")
    fill, ink, stroke = (UP, PAPER, UP) if port.is_up else (PAPER, SOFT, DOWN)
    return (
        f'<g><title>{escape(tip)}</title><circle cx="{x:.1f}" cy="{y:.1f}" r="11" fill="{fill}" stroke="{stroke}"'
        f' stroke-width="1.5"{"" if port.is_up else DASHED}/>'
        + _text(x, y + 4, str(port.index), size_px=10, fill=ink, anchor="middle")
        + "</g>"
    )


DASHED = ' stroke-dasharray="3 2"'


def _tag(device: Device, member: str, tints: dict[str, str], x: float, y: float) -> Iterator[str]:
    stroke = LINE if device.is_healthy else BAD
    state = "healthy" if device.is_healthy else "not healthy"
    yield (
        f'<g><title>{escape(f"{device.id}: {member}, {state}")}</title><rect x="{x}" y="{y}" width="132"'
        f' height="{TAG_HEIGHT}" rx="5" fill="{tints[device.id]}" stroke="{stroke}"'
        f' stroke-width="{1 if device.is_healthy else 2}"/></g>'
    )
    label = f"{device.id} {member}" if device.id != member else member
    mark = "" if device.is_healthy else " !"
    yield _text(x + 8, y + 16, f"{label}{mark}"[:22], size_px=11, fill=INK if device.is_healthy else BAD)


def _numa(nodes: tuple[NumaNode, ...], x: float, y: float, width: float) -> tuple[list[str], float]:
    """A box a NUMA node, up to four a row, with how full its memory is."""
    columns = max(1, min(len(nodes), 4 if width > 500 else 2))
    box = (width - (columns - 1) * 12) / columns
    parts: list[str] = []
    for index, node in enumerate(nodes):
        row, column = divmod(index, columns)
        parts += _numa_node(node, x + column * (box + 12), y + row * (NUMA_HEIGHT + 12), box)
    rows = -(-len(nodes) // columns)
    return parts, y + rows * (NUMA_HEIGHT + 12) - (12 if rows else 0)


def _numa_node(node: NumaNode, x: float, y: float, width: float) -> Iterator[str]:
    border = DASHED if node.is_cpuless else ""
    yield (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{NUMA_HEIGHT}" rx="8" fill="{PAPER}"'
        f' stroke="{SOFT}"{border}/>'
    )
    yield _text(x + 10, y + 20, f"NUMA {node.id}", weight=600)
    yield _text(x + 10, y + 37, "memory only" if node.is_cpuless else f"CPUs {ranges(node.cpus)}"[:26], size_px=11)
    if node.memory_total:
        used = 1 - (node.memory_free or 0) / node.memory_total
        yield _bar(x + 10, y + 46, width - 20, used)
        yield _text(
            x + 10, y + 68, f"{size(node.memory_free)} of {size(node.memory_total)} free", size_px=11, fill=SOFT
        )
    pages = sum(p.total * p.size_kib * 1024 for p in node.hugepages)
    if pages:
        yield _text(x + 10, y + 84, f"{size(pages)} in huge pages", size_px=11, fill=SOFT)


def _bar(x: float, y: float, width: float, share: float) -> str:
    filled = max(0.0, min(1.0, share)) * width
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="8" rx="4" fill="#e6ebf0"/>'
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{filled:.1f}" height="8" rx="4" fill="{OWN}"/>'
    )


# Pieces


def _legend(x: float, y: float) -> Iterator[str]:
    yield f'<circle cx="{x + 6}" cy="{y - 4}" r="6" fill="{UP}"/>'
    yield _text(x + 18, y, "port up", size_px=11, fill=SOFT)
    yield f'<circle cx="{x + 84}" cy="{y - 4}" r="6" fill="{PAPER}" stroke="{DOWN}" stroke-width="1.5"{DASHED}/>'
    yield _text(x + 96, y, "port down", size_px=11, fill=SOFT)
    yield _text(x + 176, y, "one colour: the entities of one device", size_px=11, fill=SOFT)
    yield _text(x + 400, y, "! not healthy", size_px=11, fill=BAD)
    yield _text(x + 490, y, "dashed NUMA node: memory only, such as borrowed memory", size_px=11, fill=SOFT)


def _box(x: float, y: float, width: float, height: float, *, title: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height:.1f}" rx="12" fill="{PAPER}" stroke="{LINE}"/>'
        + _text(x + 16, y + 24, title, size_px=11, fill=SOFT, weight=600)
    )


def _line(a: tuple[float, float], b: tuple[float, float], stroke: str, width: float) -> str:
    return (
        f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" stroke="{stroke}"'
        f' stroke-width="{width}"/>'
    )


def _text(
    x: float, y: float, text: str, *, size_px: int = 13, fill: str = INK, anchor: str = "start", weight: int = 400
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size_px}" fill="{fill}" text-anchor="{anchor}"'
        f' font-weight="{weight}">{escape(text)}</text>'
    )


def _document(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
            f' viewBox="0 0 {width:.0f} {height:.0f}" font-family="system-ui, Helvetica, Arial, sans-serif"'
            f' role="img" aria-label={quoteattr(title)}>',
            f"<title>{escape(title)}</title>",
            f'<rect width="100%" height="100%" fill="{PAPER}"/>',
            *parts,
            "</svg>",
        )
    )

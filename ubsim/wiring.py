"""Cables between nodes, by the usual patterns. Pure. One plane per die: a link joins dies of the same place.

Source: reference/ub.md section 5 (1D full mesh and Clos of libtpsa; 2 planes of 8, or 16 in a 2D mesh).
"""

from collections.abc import Iterator

from ubhost.errors import InvalidRequest
from ubsim.scenario import Link, Node, PortId, Wiring

SWITCH = "plane"  # node name of the switch of a plane in a Clos, with the plane's number


def wire(wiring: Wiring, nodes: tuple[Node, ...]) -> tuple[Link, ...]:
    """Return the links of ``nodes`` in the order of planes.

    Raises:
        InvalidRequest: the nodes have too few ports for the pattern.
    """
    if wiring is Wiring.NONE or len(nodes) < 2:
        return ()
    if wiring is Wiring.AUTO:
        wiring = Wiring.FULL_MESH if len(nodes) - 1 <= _ports(nodes) else Wiring.CLOS
    if wiring is Wiring.CLOS:
        return tuple(_clos(nodes))
    neighbours = _row(nodes) if wiring is Wiring.FULL_MESH else _grid(nodes)
    return tuple(_mesh(neighbours, wiring))


def _ports(nodes: tuple[Node, ...]) -> int:
    """Ports of the die that has fewest."""
    return min(
        sum(port.id.chip == chip and port.id.die == die for port in n.ports) for n in nodes for chip, die in n.dies
    )


def _row(nodes: tuple[Node, ...]) -> list[tuple[Node, Node]]:
    return [(a, b) for at, a in enumerate(nodes) for b in nodes[at + 1 :]]


def _grid(nodes: tuple[Node, ...]) -> list[tuple[Node, Node]]:
    width = next(w for w in range(1, len(nodes) + 1) if w * w >= len(nodes))
    where = {node.name: divmod(at, width) for at, node in enumerate(nodes)}
    return [
        (a, b) for a, b in _row(nodes) if where[a.name][0] == where[b.name][0] or where[a.name][1] == where[b.name][1]
    ]


def _mesh(neighbours: list[tuple[Node, Node]], wiring: Wiring) -> Iterator[Link]:
    free: dict[tuple[str, int, int], Iterator[PortId]] = {}
    for a, b in neighbours:
        for node in (a, b):
            for chip, die in node.dies:
                ports = sorted(p.id for p in node.ports if (p.id.chip, p.id.die) == (chip, die))
                free.setdefault((node.name, chip, die), iter(ports))
        for chip, die in sorted(set(a.dies) & set(b.dies)):
            ends = [next(free[node.name, chip, die], None) for node in (a, b)]
            if ends[0] is None or ends[1] is None:
                raise InvalidRequest(f"{wiring.value}: die {chip}/{die} of {a.name} or {b.name} has too few ports")
            yield Link(ends[0], ends[1])


def _clos(nodes: tuple[Node, ...]) -> Iterator[Link]:
    plane_of = {die: plane for plane, die in enumerate(sorted({die for node in nodes for die in node.dies}))}
    used = dict.fromkeys(plane_of, 0)
    for node in nodes:
        for port in node.ports:
            die = (port.id.chip, port.id.die)
            yield Link(port.id, PortId(f"{SWITCH}{plane_of[die]}", 0, 0, used[die]))
            used[die] += 1

"""What can happen to a super-node while it runs: from one value to the next. Pure.

Each function returns the super-node after the event, or raises ``InvalidRequest`` when there is nothing it could happen
to. Every daemon of a super-node applies the same events to its own copy, and makes its own node follow.
"""

from collections.abc import Callable
from dataclasses import replace

from ubhost.errors import InvalidRequest
from ubhost.model import PortState
from ubsim.expansion import BORROWED, LOCAL, die_pairs, generated_device, next_memids
from ubsim.scenario import Link, Node, Numa, Region, SuperNode
from ubsim.words import port_of

Change = Callable[[SuperNode], SuperNode]


def set_port(super_node: SuperNode, port: str, state: str) -> SuperNode:
    """Port NODE/CHIP/DIE/PORT takes the state called ``state`` (``DOWN``, ``ACTIVE`` …)."""
    wanted = port_of(port)
    if state not in PortState.__members__:
        raise InvalidRequest(f"{state!r} is none of {', '.join(PortState.__members__)}")
    node = super_node.node(wanted.node)
    if wanted not in {one.id for one in node.ports}:
        raise InvalidRequest(f"there is no port {port}")
    ports = tuple(replace(one, state=PortState[state]) if one.id == wanted else one for one in node.ports)
    return _with_node(super_node, replace(node, ports=ports))


def set_link(
    super_node: SuperNode, end: str, *, up: bool | None = None, latency_us: float | None = None, mbps: int | None = None
) -> SuperNode:
    """Change the cable in port ``end``; what is ``None`` stays."""
    wanted = port_of(end)
    links = list(super_node.links)
    for at, link in enumerate(links):
        if wanted in (link.a, link.b):
            links[at] = Link(
                link.a,
                link.b,
                link.is_up if up is None else up,
                link.latency_us if latency_us is None else latency_us,
                link.bandwidth_mbps if mbps is None else mbps,
            )
            return replace(super_node, links=tuple(links))
    raise InvalidRequest(f"no cable is in port {end}")


def plug(super_node: SuperNode, name: str, device: str) -> SuperNode:
    """Device ``urma_N`` appears on node ``name``, as the scenario would have generated it."""
    node = super_node.node(name)
    if any(one.name == device for one in node.devices):
        raise InvalidRequest(f"{name} has a device {device}")
    digits = device.removeprefix("urma_")
    if not (digits.isascii() and digits.isdigit()) or digits == device or int(digits) == 0:
        raise InvalidRequest(f"{device!r} is not a device, such as urma_3")
    ports = sum((port.id.chip, port.id.die) == node.dies[0] for port in node.ports)
    new = generated_device(int(digits), super_node.id, node.slot_id, die_pairs(node.dies), ports)
    devices = sorted((*node.devices, new), key=lambda one: int(one.bonding.rpartition("_")[2]))
    return _with_node(super_node, replace(node, devices=tuple(devices)))


def unplug(super_node: SuperNode, name: str, device: str) -> SuperNode:
    """Device ``device`` is gone from node ``name``. The host's own cannot go."""
    node = super_node.node(name)
    if not any(one.name == device for one in node.devices):
        raise InvalidRequest(f"{name} has no device {device!r}")
    return _with_node(super_node, replace(node, devices=tuple(one for one in node.devices if one.name != device)))


def borrow(super_node: SuperNode, borrower: str, lender: str, size: int, lease: str = "") -> SuperNode:
    """``borrower`` gets ``size`` bytes of ``lender`` as a NUMA node without CPUs, the lowest number that is free."""
    node = super_node.node(borrower)
    super_node.node(lender)
    number = next(n for n in range(len(node.numa) + 1) if n not in {numa.id for numa in node.numa})
    numa = tuple(sorted((*node.numa, Numa(number, size, borrowed_from=lender)), key=lambda one: one.id))
    memids = next_memids(super_node.regions, (lender, borrower))
    region = Region(f"{borrower}.numa{number}", lender, (borrower,), size, memids, numa=number, lease=lease)
    changed = replace(node, numa=numa, distances=_distances(node, numa))
    return replace(_with_node(super_node, changed), regions=(*super_node.regions, region))


def give_back(super_node: SuperNode, borrower: str, number: int) -> SuperNode:
    """Node ``borrower`` returns the borrowed memory that was its NUMA node ``number``."""
    node = super_node.node(borrower)
    if not any(numa.id == number and numa.borrowed_from for numa in node.numa):
        raise InvalidRequest(f"NUMA node {number} of {borrower} is not borrowed memory")
    numa = tuple(one for one in node.numa if one.id != number)
    regions = tuple(r for r in super_node.regions if not (r.importers == (borrower,) and r.numa == number))
    return replace(_with_node(super_node, replace(node, numa=numa, distances=_distances(node, numa))), regions=regions)


def lease(super_node: SuperNode, borrower: str, lender: str, name: str, blocks: int, block: int) -> SuperNode:
    """``borrower`` gets ``blocks`` blocks of ``block`` bytes each of ``lender``, every one a device node."""
    super_node.node(borrower)
    super_node.node(lender)
    for number in range(blocks):
        memids = next_memids(super_node.regions, (lender, borrower))
        region = Region(f"{borrower}/{name}/{number}", lender, (borrower,), block, memids, lease=name)
        super_node = replace(super_node, regions=(*super_node.regions, region))
    return super_node


def end_lease(super_node: SuperNode, borrower: str, name: str) -> SuperNode:
    """Give back what ``borrower`` leased as ``name``, as a NUMA node or as device nodes."""
    mine = [region for region in super_node.regions if region.lease == name and region.importers == (borrower,)]
    if not mine:
        raise InvalidRequest(f"{borrower} has no lease {name!r}")
    for region in mine:
        if region.numa is not None:
            super_node = give_back(super_node, borrower, region.numa)
    return replace(super_node, regions=tuple(region for region in super_node.regions if region not in mine))


def lendable(super_node: SuperNode, name: str) -> int:
    """Return how many bytes node ``name`` could still lend: what is its own and not lent, but for one block."""
    node = super_node.node(name)
    own = sum(numa.memory for numa in node.numa if numa.borrowed_from is None)
    return own - sum(region.size for region in super_node.regions if region.owner == name) - (128 << 20)


def share(super_node: SuperNode, region: Region) -> SuperNode:
    """Export ``region`` from its owner and import it on the others; its ids are dealt out here."""
    if any(one.name == region.name for one in super_node.regions):
        raise InvalidRequest(f"there is a region {region.name}")
    users = (region.owner, *region.importers)
    for name in users:
        super_node.node(name)
    memids = next_memids(super_node.regions, users)
    return replace(super_node, regions=(*super_node.regions, replace(region, memids=memids)))


def unshare(super_node: SuperNode, name: str) -> SuperNode:
    _shared(super_node, name)
    return replace(super_node, regions=tuple(one for one in super_node.regions if one.name != name))


def attach(super_node: SuperNode, name: str, node: str) -> SuperNode:
    """Import a shared region on ``node``; its exporter has it already, and only says that it uses it."""
    region = _shared(super_node, name)
    if node in region.attached:
        raise InvalidRequest(f"region {name} is attached on {node} already")
    changed = replace(region, attached=(*region.attached, node))
    if node not in (region.owner, *region.importers):
        (memid,) = next_memids(super_node.regions, (super_node.node(node).name,))
        changed = replace(changed, importers=(*region.importers, node), memids=(*region.memids, memid))
    return _with_region(super_node, region, changed)


def detach(super_node: SuperNode, name: str, node: str) -> SuperNode:
    """Unimport a shared region on ``node``."""
    region = _shared(super_node, name)
    if node not in region.attached:
        raise InvalidRequest(f"region {name} is not attached on {node}")
    kept = [(user, memid) for user, memid in region.users() if user != node or user == region.owner]
    changed = replace(
        region,
        attached=tuple(user for user in region.attached if user != node),
        importers=tuple(user for user, _ in kept[1:]),
        memids=tuple(memid for _, memid in kept),
    )
    return _with_region(super_node, region, changed)


def _shared(super_node: SuperNode, name: str) -> Region:
    found = next((one for one in super_node.regions if one.name == name and one.numa is None), None)
    if found is None:
        raise InvalidRequest(f"there is no shared region {name!r}")
    return found


def _with_region(super_node: SuperNode, old: Region, new: Region) -> SuperNode:
    return replace(super_node, regions=tuple(new if one is old else one for one in super_node.regions))


def set_health(super_node: SuperNode, name: str, device: str, *, healthy: bool) -> SuperNode:
    """The driver of ``device`` has an error that no port shows, or has recovered."""
    node = super_node.node(name)
    if not any(one.name == device for one in node.devices):
        raise InvalidRequest(f"{name} has no device {device!r}")
    devices = tuple(replace(one, is_healthy=healthy) if one.name == device else one for one in node.devices)
    return _with_node(super_node, replace(node, devices=devices))


def _distances(node: Node, numa: tuple[Numa, ...]) -> tuple[tuple[int, ...], ...]:
    """Keep the distances between what was there, and put what is new far away."""
    old = {(a.id, b.id): node.distances[i][j] for i, a in enumerate(node.numa) for j, b in enumerate(node.numa)}
    return tuple(tuple(old.get((a.id, b.id), LOCAL if a.id == b.id else BORROWED) for b in numa) for a in numa)


def _with_node(super_node: SuperNode, node: Node) -> SuperNode:
    return replace(super_node, nodes=tuple(node if one.name == node.name else one for one in super_node.nodes))

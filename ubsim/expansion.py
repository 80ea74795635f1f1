"""From the short form of a scenario file to a super-node with everything spelled out.

Faults of single values (a size that is none, a port that is not one) are collected and raised together; whether
the whole can exist is asked in ``ubsim.consistency``.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ubhost import config
from ubhost.errors import InvalidRequest
from ubhost.model import Eid, Mtu, PortState, Speed, Width
from ubhost.provider import Sharing
from ubsim import consistency
from ubsim.scenario import (
    EID_PREFIX,
    DeviceEntry,
    Link,
    LinkEntry,
    Node,
    NodeEntry,
    Numa,
    NumaEntry,
    Port,
    PortEntry,
    PortId,
    Region,
    ScenarioFile,
    SuperNode,
    Urma,
)
from ubsim.wiring import wire
from ubsim.words import cpus_of, port_of, size_of

T = TypeVar("T")
LOCAL, REMOTE, BORROWED = 10, 21, 100  # NUMA distances that a file may leave out


class Faults:
    """Collects what is wrong, so that a user sees all of it at once."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def try_(self, at: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except InvalidRequest as error:
            self.found.append(f"{at}: {error}")
            return otherwise


def load(path: Path) -> SuperNode:
    """Read a scenario file.

    Raises:
        InvalidRequest: it cannot be read, has wrong or unknown keys, or cannot exist; every fault is named.
    """
    super_node = expand(config.load(path, ScenarioFile), where=str(path))
    consistency.refuse_impossible(super_node, where=str(path))
    return super_node


def expand(file: ScenarioFile, *, where: str) -> SuperNode:
    """Spell ``file`` out.

    Raises:
        InvalidRequest: single values that mean nothing; all are named.
    """
    faults = Faults()
    entries = tuple(_repeated(file.nodes))
    nodes = tuple(_node(entry, slot, file, faults) for slot, entry in enumerate(entries))
    if file.links:
        links = tuple(_link(entry, at, faults) for at, entry in enumerate(file.links))
    else:
        links = faults.try_("$.wiring", lambda: wire(file.wiring, nodes), ())
    regions = _regions(file, nodes, faults)
    if faults.found:
        raise InvalidRequest(f"{where}: " + "; ".join(faults.found))
    return SuperNode(
        file.name, file.super_node_id, nodes, file.sharing, file.eid_sharing, file.ubse_owners, links, regions
    )


def _repeated(entries: tuple[NodeEntry, ...]) -> Iterator[NodeEntry]:
    for entry in entries:
        if entry.count == 1:
            yield entry
            continue
        for number in range(entry.count):
            slot = None if entry.slot_id is None else entry.slot_id + number
            yield replace(entry, name=f"{entry.name}{number}", slot_id=slot, count=1)


def _node(entry: NodeEntry, position: int, file: ScenarioFile, faults: Faults) -> Node:
    slot = position if entry.slot_id is None else entry.slot_id
    at = f"node {entry.name}"
    numa = tuple(
        _numa(number, n, f"{at}: numa[{number}]", faults) for number, n in enumerate(entry.numa or DEFAULT_NUMA)
    )
    ports = tuple(_ports(entry, at, faults))
    dies = [(chip, die) for chip in range(entry.chips) for die in range(entry.dies_per_chip)]
    pairs = die_pairs(dies)
    overrides = {override.name: override for override in entry.device_overrides}
    faults.found += [
        f"{at}: device_overrides: there is no device {name}, only urma_1 to urma_{entry.devices}"
        for name in overrides
        if name not in {f"urma_{number}" for number in range(1, entry.devices + 1)}
    ]
    devices = tuple(
        _urma(number, slot, pairs, entry, file, overrides.get(f"urma_{number}"), faults)
        for number in range(entry.devices + 1)
        if pairs
    )
    return Node(
        name=entry.name,
        slot_id=slot,
        host_name=entry.host_name or entry.name,
        ports=ports,
        devices=devices,
        numa=numa,
        distances=entry.distances or _distances(numa),
        die_numa=entry.die_numa or _spread(len(dies), numa),
        netns=entry.netns,
    )


DEFAULT_NUMA = (NumaEntry(cpus="0-3"), NumaEntry(cpus="4-7"))


def _numa(number: int, entry: NumaEntry, at: str, faults: Faults) -> Numa:
    memory = faults.try_(at, lambda: size_of(entry.memory), 0)
    nothing: tuple[int, ...] = ()
    cpus = faults.try_(at, lambda: cpus_of(entry.cpus), nothing)
    return Numa(number, memory, cpus, entry.borrowed_from, entry.hugepages_2m)


def _distances(numa: tuple[Numa, ...]) -> tuple[tuple[int, ...], ...]:
    def distance(a: Numa, b: Numa) -> int:
        if a.id == b.id:
            return LOCAL
        return BORROWED if a.borrowed_from or b.borrowed_from else REMOTE

    return tuple(tuple(distance(a, b) for b in numa) for a in numa)


def _spread(dies: int, numa: tuple[Numa, ...]) -> tuple[int, ...]:
    """Neighbouring dies share a socket: the first half sits on the first NUMA node with CPUs, and so on."""
    with_cpus = [n.id for n in numa if n.cpus] or [0]
    return tuple(with_cpus[die * len(with_cpus) // dies] for die in range(dies))


def _ports(entry: NodeEntry, at: str, faults: Faults) -> Iterator[Port]:
    overrides = {
        faults.try_(f"{at}: port_overrides", lambda o=override: port_of(f"{entry.name}/{o.port}"), None): override  # type: ignore[misc]
        for override in entry.port_overrides
    }
    for chip in range(entry.chips):
        for die in range(entry.dies_per_chip):
            for number in range(entry.ports_per_die):
                port = Port(PortId(entry.name, chip, die, number))
                override = overrides.pop(port.id, None)
                yield faults.try_(f"{at}: port {port.id}", lambda p=port, o=override: _changed(p, o), port)  # type: ignore[misc]
    faults.found += [f"{at}: port_overrides: there is no port {port}" for port in overrides if port]


def _changed(port: Port, override: PortEntry | None) -> Port:
    if override is None:
        return port
    return replace(
        port,
        state=_member(PortState, override.state),
        speed=_member(Speed, override.speed),
        width=_member(Width, override.width),
        mtu=_member(Mtu, override.mtu),
    )


E = TypeVar("E", PortState, Speed, Width, Mtu)


def _member(kind: type[E], name: str) -> E:
    try:
        return kind[name]
    except KeyError:
        raise InvalidRequest(f"{name!r} is none of {', '.join(member.name for member in kind)}") from None


def _urma(
    number: int,
    slot: int,
    pairs: list[tuple[tuple[int, int], tuple[int, int]]],
    entry: NodeEntry,
    file: ScenarioFile,
    override: DeviceEntry | None,
    faults: Faults,
) -> Urma:
    """Device ``number``: the generated one, but for what the file says of it."""
    plain = generated_device(number, file.super_node_id, slot, pairs, entry.ports_per_die)
    if override is None:
        return plain
    at = f"node {entry.name}: {override.name}"

    def eid(text: str | None, otherwise: Eid) -> Eid:
        return otherwise if text is None else faults.try_(at, lambda: Eid.parse(text), otherwise)

    primaries = (*override.primary_eids, None, None)
    sides = [(eid(primaries[side], eids[0]), *eids[1:]) for side, eids in enumerate(plain.member_eids)]
    return replace(
        plain,
        bonding_eid=eid(override.bonding_eid, plain.bonding_eid),
        member_eids=(sides[0], sides[1]),
        is_unique=(override.sharing or Sharing.EXCLUSIVE) is Sharing.EXCLUSIVE,
        is_healthy=override.healthy,
        is_active=override.active,
    )


def generated_device(
    number: int, super_node_id: int, slot: int, pairs: list[tuple[tuple[int, int], tuple[int, int]]], ports: int
) -> Urma:
    """Return device ``number`` of the node in ``slot``: 0 is the host's own, on the managing entities.

    The bonding EID is [super-node, slot, entity, entity]; the third word of its members' EIDs names theirs.
    """
    fe = (2 * number, 2 * number + 1)
    where = super_node_id << 16 | slot
    eids = [tuple(Eid.from_words(EID_PREFIX, where, entity, at) for at in range(1 + ports)) for entity in fe]
    index = number // len(pairs)
    return Urma(
        name=f"urma_{number}" if number else None,
        bonding=f"bonding_dev_{number}",
        members=(f"udma{fe[0]}", f"udma{fe[1]}"),
        dies=pairs[number % len(pairs)],
        entities=(index, index),
        bonding_eid=Eid.from_words(super_node_id, slot, *fe),
        member_eids=(eids[0], eids[1]),
    )


def die_pairs(dies: Sequence[tuple[int, int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the pairs of neighbouring dies that bonding devices span."""
    return [(dies[at], dies[at + 1]) for at in range(0, len(dies) - 1, 2)]


def _regions(file: ScenarioFile, nodes: tuple[Node, ...], faults: Faults) -> tuple[Region, ...]:
    """Borrowed NUMA nodes first, then what is shared by name; ids count up on each node."""
    regions: tuple[Region, ...] = ()
    for node in nodes:
        for numa in node.numa:
            if numa.borrowed_from:
                users = (numa.borrowed_from, node.name)
                name = f"{node.name}.numa{numa.id}"
                memids = next_memids(regions, users)
                regions += (Region(name, users[0], users[1:], numa.memory, memids, numa=numa.id),)
    for at, entry in enumerate(file.shared_memory):
        size = faults.try_(f"$.shared_memory[{at}].size", lambda e=entry: size_of(e.size), 0)  # type: ignore[misc]
        memids = next_memids(regions, (entry.owner, *entry.importers))
        regions += (Region(entry.name, entry.owner, entry.importers, size, memids, entry.cacheable),)
    return regions


def next_memids(regions: tuple[Region, ...], nodes: tuple[str, ...]) -> tuple[int, ...]:
    """Return the lowest id that is free on each of ``nodes``, as the driver deals them out."""
    taken = {user for region in regions for user in region.users()}
    return tuple(next(n for n in range(1, len(taken) + 2) if (node, n) not in taken) for node in nodes)


def _link(entry: LinkEntry, at: int, faults: Faults) -> Link:
    nowhere = PortId("", 0, 0, 0)
    a = faults.try_(f"$.links[{at}].a", lambda: port_of(entry.a), nowhere)
    b = faults.try_(f"$.links[{at}].b", lambda: port_of(entry.b), nowhere)
    return Link(a, b, entry.up, entry.latency_us, entry.bandwidth_mbps)

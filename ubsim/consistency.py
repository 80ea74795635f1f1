"""Which super-nodes can exist. Each ``check_`` function knows one rule and yields what breaks it. Pure.

Source of the limits: reference/ub.md sections 1.2, 2, 5 and 6.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

from ubhost.errors import InvalidRequest
from ubhost.model import Eid
from ubsim.scenario import PORTS_PER_DIE, PortId, SuperNode, Urma
from ubsim.wiring import SWITCH

MAX_NODES = 1024
MAX_DEVICES = 255  # of 256 bonding devices of a node, one is the host's own
MAX_DIES = 18  # links[18][18] of a topology node
MAX_SLOT = 0xFFFF
MIB, GIB = 1 << 20, 1 << 30
PAGE = 4096
NUMA_IMPORT = 128 * MIB  # granularity of memory imported as a NUMA node
MAX_NUMA = 64
DISTANCE = range(10, 255)
REGION_SIZE = range(128 * MIB, 256 * GIB + 1)
REGION_GRANULE = 4 * MIB
MAX_REGIONS, MAX_REGION_NODES, MAX_REGION_NAME = 300, 16, 47
MAX_HOST_NAME = 63

T = TypeVar("T", bound=Hashable)
Check = Callable[[SuperNode], Iterator[str]]


def refuse_impossible(super_node: SuperNode, *, where: str) -> None:
    """Raise if any rule is broken.

    Raises:
        InvalidRequest: the scenario cannot exist; every fault is named.
    """
    faults = [fault for check in CHECKS for fault in check(super_node)]
    if faults:
        raise InvalidRequest(f"{where} cannot exist: " + "; ".join(faults))


def check_names(super_node: SuperNode) -> Iterator[str]:
    for what, name in (("scenario", super_node.name), *(("node", node.name) for node in super_node.nodes)):
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name):
            yield f"{what} {name!r} is not a name of a-z, 0-9 and -, at most 63 long"
    for node in super_node.nodes:
        if not node.host_name or len(node.host_name.encode()) > MAX_HOST_NAME or "\0" in node.host_name:
            yield f"node {node.name}: host_name {node.host_name!r} is not 1 to {MAX_HOST_NAME} bytes"
        if re.fullmatch(rf"{SWITCH}\d+", node.name):
            yield f"node {node.name} is called like a switch"
    yield from (f"two nodes are called {name}" for name in _twice(node.name for node in super_node.nodes))


def check_counts(super_node: SuperNode) -> Iterator[str]:
    if not 1 <= len(super_node.nodes) <= MAX_NODES:
        yield f"{len(super_node.nodes)} nodes are not 1 to {MAX_NODES}"
    for node in super_node.nodes:
        if not 1 <= len(node.devices) <= 1 + MAX_DEVICES:
            yield f"node {node.name}: {len(node.devices) - 1} devices are not 0 to {MAX_DEVICES}"
        if len(node.dies) % 2 or not 2 <= len(node.dies) <= MAX_DIES:
            yield f"node {node.name}: {len(node.dies)} dies are not an even number from 2 to {MAX_DIES}"
        for die in node.dies:
            ports = sum((port.id.chip, port.id.die) == die for port in node.ports)
            if ports > PORTS_PER_DIE:
                yield f"node {node.name}: {ports} ports of die {die[0]}/{die[1]} are more than {PORTS_PER_DIE}"


def check_positions(super_node: SuperNode) -> Iterator[str]:
    if not 1 <= super_node.id <= 0xFFFFFFFF:
        yield f"super_node_id {super_node.id} is not 1 to 4294967295"
    slots = [node.slot_id for node in super_node.nodes]
    yield from (f"slot_id {slot} is taken twice" for slot in _twice(slots))
    yield from (f"slot_id {slot} is not 0 to {MAX_SLOT}" for slot in slots if not 0 <= slot <= MAX_SLOT)


def check_eids(super_node: SuperNode) -> Iterator[str]:
    owners: dict[Eid, str] = {}
    for node in super_node.nodes:
        for device in node.devices:
            for name, eid in _eids(device):
                owner = f"{name} of {node.name}"
                if eid.is_zero:
                    yield f"{owner} has the EID zero, which means none"
                elif eid in owners:
                    yield f"EID {eid} is both of {owners[eid]} and of {owner}"
                owners[eid] = owner


def check_bonding_eids(super_node: SuperNode) -> Iterator[str]:
    """A bonding EID is composed of four words: super-node, slot, and the two entities."""
    for node in super_node.nodes:
        for device in node.devices:
            words = (device.bonding_eid.value >> 96, device.bonding_eid.value >> 64 & 0xFFFFFFFF)
            if words != (super_node.id, node.slot_id):
                yield (
                    f"node {node.name}: EID {device.bonding_eid} of {device.bonding} does not begin with"
                    f" super-node {super_node.id} and slot {node.slot_id}"
                )


def check_dies(super_node: SuperNode) -> Iterator[str]:
    """Every die is near some CPUs."""
    for node in super_node.nodes:
        with_cpus = {numa.id for numa in node.numa if numa.cpus}
        if len(node.die_numa) != len(node.dies):
            yield f"node {node.name}: die_numa has {len(node.die_numa)} entries for {len(node.dies)} dies"
        for numa in sorted(set(node.die_numa) - with_cpus):
            yield f"node {node.name}: a die is on NUMA node {numa}, which is missing or without CPUs"


def check_links(super_node: SuperNode) -> Iterator[str]:
    """Both ends exist, no port has two cables, no node is joined to itself, no cable beats its port."""
    speed = {port.id: port.speed.mbps * port.width.value for node in super_node.nodes for port in node.ports}
    known = set(speed)
    ends: list[PortId] = []
    for link in super_node.links:
        ends += [link.a, link.b]
        yield from _missing_ends(link.a, link.b, known)
        if link.a.node == link.b.node:
            yield f"link {link.a} - {link.b} joins {link.a.node} to itself"
        if not 0 <= link.latency_us < math.inf or link.bandwidth_mbps < 0:
            yield f"link {link.a} - {link.b}: latency {link.latency_us}, bandwidth {link.bandwidth_mbps}: not from 0 on"
        limit = min((speed[end] for end in (link.a, link.b) if end in speed), default=0)
        if link.bandwidth_mbps > limit:
            yield f"link {link.a} - {link.b}: {link.bandwidth_mbps} Mb/s are more than the ports' {limit}"
    yield from (f"port {port} has two links" for port in _twice(ends))


def _missing_ends(a: PortId, b: PortId, known: set[PortId]) -> Iterator[str]:
    for end in (a, b):
        if end not in known and not (end is b and re.fullmatch(rf"{SWITCH}\d+", end.node)):
            yield f"link {a} - {b}: there is no port {end}"


def check_numa(super_node: SuperNode) -> Iterator[str]:
    for node in super_node.nodes:
        at = f"node {node.name}"
        if not 1 <= len(node.numa) <= MAX_NUMA:
            yield f"{at}: {len(node.numa)} NUMA nodes are not 1 to {MAX_NUMA}"
        if not any(numa.cpus for numa in node.numa):
            yield f"{at} has no CPU"
        yield from (
            f"{at}: CPU {cpu} is on two NUMA nodes" for cpu in _twice(c for numa in node.numa for c in numa.cpus)
        )
        for numa in node.numa:
            if numa.memory <= 0 or numa.memory % PAGE:
                yield f"{at}: numa[{numa.id}] has {numa.memory} bytes, not a positive number of pages"
            if not 0 <= numa.hugepages_2m * 2 * MIB <= numa.memory:
                yield f"{at}: numa[{numa.id}] cannot hold {numa.hugepages_2m} hugepages of 2 MiB"


def check_distances(super_node: SuperNode) -> Iterator[str]:
    for node in super_node.nodes:
        at = f"node {node.name}: distances"
        size = len(node.numa)
        if len(node.distances) != size or any(len(row) != size for row in node.distances):
            yield f"{at} are not {size} rows of {size}"
            continue
        for a in range(size):
            if node.distances[a][a] != DISTANCE.start:
                yield f"{at}[{a}][{a}] is {node.distances[a][a]}, not {DISTANCE.start}"
            for b in range(a):
                there, back = node.distances[a][b], node.distances[b][a]
                if there != back or there not in DISTANCE or there == DISTANCE.start:
                    yield f"{at}[{a}][{b}] is {there} and {back} back: not the same number from 11 to 254"


def check_borrowing(super_node: SuperNode) -> Iterator[str]:
    names = {node.name for node in super_node.nodes}
    for node in super_node.nodes:
        for numa in node.numa:
            at = f"node {node.name}: numa[{numa.id}]"
            if numa.borrowed_from is None:
                continue
            if numa.borrowed_from not in names or numa.borrowed_from == node.name:
                yield f"{at} is borrowed from {numa.borrowed_from!r}, which is no other node"
                continue
            if numa.cpus:
                yield f"{at} is borrowed and has CPUs"
            if numa.memory % NUMA_IMPORT:
                yield f"{at}: {numa.memory} bytes are not a multiple of 128 MiB"


def check_lending(super_node: SuperNode) -> Iterator[str]:
    """A node keeps some of its own memory."""
    lent = Counter[str]()
    for region in super_node.regions:
        lent[region.owner] += region.size
    for node in super_node.nodes:
        own = sum(numa.memory for numa in node.numa if numa.borrowed_from is None)
        if lent[node.name] >= own:
            yield f"node {node.name} lends {lent[node.name]} bytes and has only {own} of its own"


def check_regions(super_node: SuperNode) -> Iterator[str]:
    shared = [region for region in super_node.regions if region.numa is None and not region.lease]
    if len(shared) > MAX_REGIONS:
        yield f"{len(shared)} shared regions are more than {MAX_REGIONS}"
    yield from (f"two regions are called {name}" for name in _twice(region.name for region in super_node.regions))
    names = {node.name for node in super_node.nodes}
    for region in super_node.regions:
        at = f"region {region.name}"
        if not region.lease and not re.fullmatch(rf"[A-Za-z0-9.:_-]{{1,{MAX_REGION_NAME}}}", region.name):
            yield f"{at!r} is not a name of letters, digits and .:_-, at most {MAX_REGION_NAME} long"
        if region.size not in REGION_SIZE or region.size % REGION_GRANULE:
            yield f"{at}: {region.size} bytes are not 128 MiB to 256 GiB in steps of 4 MiB"
        users = (region.owner, *region.importers)
        yield from (f"{at}: there is no node {name!r}" for name in users if name not in names)
        yield from (f"{at}: {name} has it twice" for name in _twice(users))
        if len(users) > MAX_REGION_NODES:
            yield f"{at}: {len(users)} nodes are more than {MAX_REGION_NODES}"


CHECKS: tuple[Check, ...] = (
    check_names,
    check_counts,
    check_positions,
    check_eids,
    check_bonding_eids,
    check_dies,
    check_links,
    check_numa,
    check_distances,
    check_borrowing,
    check_lending,
    check_regions,
)


def _twice(values: Iterable[T]) -> Iterator[T]:
    return (value for value, count in Counter(values).items() if count > 1)


def _eids(device: Urma) -> Iterator[tuple[str, Eid]]:
    yield device.bonding, device.bonding_eid
    for member, eids in zip(device.members, device.member_eids, strict=True):
        yield from ((member, eid) for eid in eids)

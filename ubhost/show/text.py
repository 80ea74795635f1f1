"""A host in tables, for people. Pure."""

from collections.abc import Iterable

from ubhost.capacity import capacity as summed_up
from ubhost.discovery import Discovery, Level
from ubhost.model import Eid, EntityPort, NumaNode, UbEntity
from ubhost.provider import Device
from ubhost.show.table import ranges, rate, size, table
from ubhost.topology import Die, Port

_LEVELS = {
    Level.MODEL: "a model in memory: not a UB machine",
    Level.STAND_IN: "the simulator: no figure here is a UB figure",
    Level.SOFT_DEVICE: "a soft RDMA device: no figure here is a UB figure",
    Level.HARDWARE: "hardware",
}


def overview(found: Discovery) -> str:
    """Everything worth a look; what this machine has none of is left out."""
    parts = [heading(found), devices(found)]
    if found.topology.dies:
        parts.append(dies(found))
    if found.rdma:
        parts.append(rdma(found))
    parts.append(numa(found.host.numa))
    if found.host.shared_memory or found.host.memory_pools:
        parts.append(memory(found))
    return "\n\n".join(parts)


def heading(found: Discovery) -> str:
    position, sharing = found.topology.position, found.sharing
    name = position.host_name or "this host"
    place = "" if position.slot_id is None else f", slot {position.slot_id} of super-node {position.super_node_id}"
    lines = [
        f"{name}{place}",
        f"source: provider {found.kind.value}, {_LEVELS[found.level]}",
        f"devices are {'?' if sharing is None else sharing.value} between network namespaces",
        *(f"note: {note}" for note in found.notes),
    ]
    return "\n".join(lines)


def devices(found: Discovery) -> str:
    rows = (_device(device, found) for device in found.devices)
    return table(("DEVICE", "HEALTH", "MEMBERS", "NETDEV", "NUMA", "PLANES", "EIDS", "FIRST EID"), rows)


def _device(device: Device, found: Discovery) -> tuple[object, ...]:
    return (
        device.id,
        "ok" if device.is_healthy else "bad",
        " ".join(device.members),
        device.netdev,
        device.numa,
        ranges(found.topology.planes_of(device.members)),
        len(device.eids),
        device.eids[0].eid if device.eids else None,
    )


def eids(found: Discovery) -> str:
    """Every EID that this namespace sees; one that a pod has is not here."""
    rows = ((d.id, slot.device, slot.index, slot.eid) for d in found.devices for slot in d.eids)
    return table(("DEVICE", "MEMBER", "SLOT", "EID"), rows)


def dies(found: Discovery) -> str:
    """IO dies and how many of their ports are up."""
    return table(("DIE", "PLANE", "NUMA", "PORTS UP", "NOMINAL", "DEVICES"), map(_die, found.topology.dies))


def _die(die: Die) -> tuple[object, ...]:
    up = f"{len(die.links)} of {len(die.ports)}"
    return die.controller, die.plane, die.numa, up, rate(die.bandwidth_mbps), " ".join(die.devices)


def links(found: Discovery) -> str:
    """Every port of every die, and what is at its other end."""
    rows = (
        (die.controller, die.plane, port.index, _state(port), _peer(port), port.peer_port)
        for die in found.topology.dies
        for port in die.ports
    )
    return table(("DIE", "PLANE", "PORT", "LINK", "PEER", "PEER PORT"), rows)


def _state(port: Port) -> str:
    return "?" if port.is_up is None else "up" if port.is_up else "down"


def _peer(port: Port) -> str | None:
    return port.peer or ("outside this domain" if port.is_boundary else None)


def nodes(found: Discovery) -> str:
    """The nodes of the super-node, as UBSE knows them."""
    rows = ((node.slot_id, node.host_name, node.hops) for node in found.topology.nodes)
    return table(("SLOT", "NODE", "HOPS"), rows)


def topology(found: Discovery) -> str:
    parts = [heading(found), dies(found), links(found), numa(found.host.numa)]
    if found.topology.nodes:
        parts.insert(1, nodes(found))
    return "\n\n".join(parts)


def numa(nodes_: Iterable[NumaNode]) -> str:
    listed = tuple(nodes_)
    rows = (
        (
            node.id,
            "memory only" if node.is_cpuless else ranges(node.cpus),
            size(node.memory_total),
            size(node.memory_free),
            " ".join(f"{p.free}/{p.total}x{size(p.size_kib * 1024)}" for p in node.hugepages if p.total),
            " ".join(str(node.distances.get(other.id, "-")) for other in listed),
        )
        for node in listed
    )
    distance = f"DISTANCE TO {' '.join(str(node.id) for node in listed)}"
    return table(("NUMA", "CPUS", "MEMORY", "FREE", "HUGE PAGES FREE", distance), rows)


def entities(found: Discovery) -> str:
    """What is on the UB bus."""
    return table(
        ("ENTITY", "VENDOR:DEVICE", "DRIVER", "NUMA", "UES", "PORTS UP", "GUID"), map(_entity, found.host.entities)
    )


def _entity(entity: UbEntity) -> tuple[object, ...]:
    ids = None if entity.vendor is None or entity.device is None else f"{entity.vendor:04x}:{entity.device:04x}"
    ues = None if entity.total_ues is None else f"{entity.num_ues} of {entity.total_ues}"
    return entity.number, ids, entity.driver, entity.numa, ues, _ports_up(entity.ports), entity.guid


def _ports_up(ports: tuple[EntityPort, ...]) -> str | None:
    return f"{sum(bool(port.linkup) for port in ports)} of {len(ports)}" if ports else None


def rdma(found: Discovery) -> str:
    """Ordinary RDMA devices, a line a port."""
    rows = (
        (d.name, d.driver, d.numa, p.index, p.state, p.link_layer, rate(p.rate_mbps), p.netdev, _first(p.gids))
        for d in found.rdma
        for p in d.ports
    )
    return table(("RDMA", "DRIVER", "NUMA", "PORT", "STATE", "LINK", "RATE", "NETDEV", "FIRST GID"), rows)


def _first(gids: tuple[tuple[int, Eid], ...]) -> Eid | None:
    return gids[0][1] if gids else None


def memory(found: Discovery) -> str:
    """Memory shared over the bus, and the pools it is lent from."""
    rows = [(m.node, m.type, size(m.size), m.allow_mmap, m.numa) for m in found.host.shared_memory]
    pools = [(pool.numa, size(pool.total), size(pool.used)) for pool in found.host.memory_pools]
    parts = [table(("REGION", "TYPE", "SIZE", "MAY BE MAPPED", "NUMA"), rows)]
    if pools:
        parts.append(table(("POOL OF NUMA", "TOTAL", "USED"), pools))
    return "\n\n".join(parts)


def capacity(found: Discovery) -> str:
    """What a scheduler has to know."""
    known = summed_up(found)
    counts = known.devices
    spread = ", ".join(f"{count} on NUMA {numa}" for numa, count in counts.by_numa.items())
    lines = [
        f"devices    {counts.healthy} healthy of {counts.total}" + (f": {spread}" if spread else ""),
        f"borrowed   {size(known.borrowed)}",
        f"lent       {size(known.lent)}",
        f"pool       {size(known.pool_used)} used of {size(known.pool_total)}",
    ]
    planes = ((p.plane, f"{p.ports_up} of {p.ports}", rate(p.nominal_mbps)) for p in known.planes)
    nodes_ = (
        (m.slot_id, m.host_name, m.hops, size(m.total), size(m.free), size(m.lendable), m.huge_pages_2m_free)
        for m in known.memory
    )
    return "\n\n".join(
        (
            heading(found),
            "\n".join(lines),
            table(("PLANE", "PORTS UP", "NOMINAL"), planes),
            table(("SLOT", "NODE", "HOPS", "MEMORY", "FREE", "LENDABLE", "FREE 2 MiB PAGES"), nodes_),
        )
    )

"""What the kernel of each node of a super-node would tell: the scenario as ``ubhost.model`` values. Pure.

Per die there is a controller that holds the ports (entity 0), a managing entity (entity 1) under the host's own
devices, and one more entity for every device that is handed out.

Source: reference/ub.md sections 1.2, 4, 5 and 6.1. Limits of a device are plausible numbers, not measured ones.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ubhost.model import (
    BusInstance,
    Eid,
    EntityPort,
    HugePages,
    NumaNode,
    PortState,
    Position,
    Priority,
    SharedMemory,
    TransMode,
    Transport,
    UbBus,
    UbEntity,
    UbHost,
    UrmaDevice,
    UrmaPort,
)
from ubsim.scenario import Node, Numa, Port, PortId, SuperNode, Urma
from ubsim.sysfs import FEATURES

VENDOR = 0xCC08
CONTROLLER, MANAGING, HANDED_OUT = 0xA000, 0xA001, 0xA002  # device ids
NETWORK_CONTROLLER = 0x0002  # class code
CONTROLLER_TYPE = 0x1
LIMITS: Mapping[str, int] = {
    "max_jfc": 65536, "max_jfs": 65536, "max_jfr": 65536, "max_jetty": 65536, "max_jetty_grp": 1024,
    "max_jetty_in_jetty_grp": 32, "max_jfc_depth": 65536, "max_jfs_depth": 8192, "max_jfr_depth": 8192,
    "max_jfs_inline_size": 256, "max_jfs_sge": 13, "max_jfs_rsge": 13, "max_jfr_sge": 13, "max_msg_size": 65536,
    "max_read_size": 65536, "max_write_size": 65536, "max_cas_size": 8, "max_swap_size": 8,
    "max_fetch_and_add_size": 8, "max_fetch_and_sub_size": 8, "max_fetch_and_and_size": 8,
    "max_fetch_and_or_size": 8, "max_fetch_and_xor_size": 8, "atomic_feat": 127, "congestion_ctrl_alg": 1,
    "ceq_cnt": 16, "max_tp_in_tpg": 16, "page_size_cap": 0x201000, "max_oor_cnt": 1024, "mn": 0,
    "max_netaddr_cnt": 1024, "max_upi_cnt": 0, "max_rc_outstd_cnt": 0, "utp_cnt": 0, "ue_cnt": 0,
}  # fmt: skip
RESERVED_JETTIES = (32, 63)  # well-known jetty ids begin at 32


def hosts_of(super_node: SuperNode, netdevs: Mapping[tuple[str, str], str] | None = None) -> dict[str, UbHost]:
    """Return what each node's kernel tells, by node; ``netdevs`` maps (node, bonding device) to its netdev."""
    return {node.name: host_of(super_node, node.name, netdevs or {}) for node in super_node.nodes}


def host_of(super_node: SuperNode, name: str, netdevs: Mapping[tuple[str, str], str]) -> UbHost:
    """Return what the kernel of node ``name`` tells."""
    node = super_node.node(name)
    peers = peers_of(super_node, name)
    return UbHost(
        is_ub_platform=True,
        devices=tuple(
            value
            for urma in node.devices
            for value in urma_devices(node, urma, peers, netdevs.get((name, urma.bonding)))
        ),
        entities=tuple(sorted(_entities(super_node, node, peers), key=lambda e: e.number)),
        numa=numa_nodes(node),
        shared_memory=shared_memory(super_node, name),
        position=Position(super_node.id, node.slot_id, node.host_name),
        bus=UbBus(
            cluster=True,
            feature=(1 << len(FEATURES)) - 1,
            instances=(BusInstance(_guid(super_node, node, 0, 0, 0, kind=0), 1, node.slot_id << 10 | 1, 1),),
        ),
    )


Peers = Mapping[PortId, tuple[PortId, bool]]


def is_usable(node: Node, urma: Urma, peers: Peers) -> bool:
    """Whether ``urma`` works: no error of its own, and each of its dies reaches something."""
    return urma.is_healthy and all(die_state(node, die, peers) is PortState.ACTIVE for die in urma.dies)


def rate_limit(super_node: SuperNode, node: Node, urma: Urma) -> int:
    """Return what the cables of a device let through, in Mb/s; 0 if none of them has a label."""
    speed = {port.id: port.speed.mbps * port.width.value for port in node.ports}
    ends = [(end, link) for link in super_node.links for end in (link.a, link.b) if end.node == node.name]
    mine = [(end, link) for end, link in ends if (end.chip, end.die) in urma.dies and link.is_up]
    if not any(link.bandwidth_mbps for _, link in mine):
        return 0
    return sum(link.bandwidth_mbps or speed[end] for end, link in mine)


def die_state(node: Node, die: tuple[int, int], peers: Peers) -> PortState:
    """Return what a die's devices tell of their only port: active while one cable is up, or the first port's state."""
    ups = [up for port, (_, up) in peers.items() if (port.chip, port.die) == die]
    if ups:
        return PortState.ACTIVE if any(ups) else PortState.DOWN
    first = PortId(node.name, *die, 0)
    return next(port.state for port in node.ports if port.id == first)


def peers_of(super_node: SuperNode, name: str) -> dict[PortId, tuple[PortId, bool]]:
    """Return for each cabled port of node ``name`` the port at the other end, and whether the link is up.

    It is up if the cable is whole and the ports at both ends are active.
    """
    dark = {port.id for node in super_node.nodes for port in node.ports if port.state is not PortState.ACTIVE}
    found = {}
    for link in super_node.links:
        up = link.is_up and link.a not in dark and link.b not in dark
        for end, other in ((link.a, link.b), (link.b, link.a)):
            if end.node == name:
                found[end] = (other, up)
    return found


def urma_devices(node: Node, urma: Urma, peers: Peers, netdev: str | None) -> Iterator[UrmaDevice]:
    """Yield the bonding device and its members, as a process of the host's own namespace sees them at boot."""
    ports = {port.id: port for port in node.ports}
    bonding_state = PortState.ACTIVE if is_usable(node, urma, peers) else PortState.DOWN
    common = {
        "transport_type": Transport.UB,
        "trans_mode": TransMode.RM | TransMode.RC | TransMode.UM,
        "dynamic_eid": False,
        "virtualization": False,
        "port_count": 1,
        "priorities": tuple(Priority(at, at, 0) for at in range(16)),
        "reserved_jetty_id": RESERVED_JETTIES,
    }
    yield UrmaDevice(
        name=urma.bonding,
        ubdev=urma.bonding,
        driver_name="ubagg",
        net_dev=netdev,
        guid=Eid(urma.bonding_eid.value),
        feature=0x3,
        eids=(urma.bonding_eid,),
        ports=(_urma_port(Port(PortId(node.name, 0, 0, 0), bonding_state)),),
        limits={**LIMITS, "max_eid_cnt": 1},
        **common,  # type: ignore[arg-type]
    )
    for side in (0, 1):
        chip, die = urma.dies[side]
        first = ports[PortId(node.name, chip, die, 0)]
        yield UrmaDevice(
            name=urma.members[side],
            ubdev=urma.members[side],
            driver_name="udma",
            guid=urma.member_eids[side][0],
            feature=0x1F,
            eids=urma.member_eids[side],
            ports=(_urma_port(replace(first, state=die_state(node, (chip, die), peers))),),  # UDMA has no other
            vendor=VENDOR,
            device=MANAGING if urma.name is None else HANDED_OUT,
            entity=_number(node, urma, side),
            limits={**LIMITS, "max_eid_cnt": len(urma.member_eids[side])},
            **common,  # type: ignore[arg-type]
        )


def _urma_port(port: Port) -> UrmaPort:
    return UrmaPort(0, port.mtu, port.mtu, port.state, port.width, port.speed)


def _number(node: Node, urma: Urma, side: int) -> str:
    return f"{len(node.dies) + 1 + int(urma.members[side].removeprefix('udma')):05x}"


def _guid(super_node: SuperNode, node: Node, device: int, die: int, index: int, kind: int = CONTROLLER_TYPE) -> str:
    sequence = super_node.id << 32 | node.slot_id << 16 | die << 12 | index
    return f"{VENDOR:04x}-{device:04x}-0-{kind:x}-000000-{sequence:016x}"


def _cna(node: Node, die: int, port: int = 0) -> int:
    return (node.slot_id << 9 | die << 4 | port) & 0xFFFFFF


def _entities(super_node: SuperNode, node: Node, peers: Peers) -> Iterator[UbEntity]:
    for at, (chip, die) in enumerate(node.dies):
        below = [(_number(node, d, side), d) for d in node.devices for side in (0, 1) if d.dies[side] == (chip, die)]
        handed_out = tuple(number for number, urma in below if urma.name)
        ports = tuple(
            _entity_port(super_node, node, at, port, peers)
            for port in node.ports
            if (port.id.chip, port.id.die) == (chip, die)
        )
        yield UbEntity(
            number=f"{at + 1:05x}",
            device=CONTROLLER,
            guid=_guid(super_node, node, CONTROLLER, at, 0),
            entity_idx=0,
            direct_links=tuple(
                f"0x{port.index:02x} : 0x{port.neighbor_port_idx:02x} [0x{int(port.neighbor, 16):03x}]"
                for port in ports
                if port.neighbor is not None and port.neighbor_port_idx is not None
            ),
            ports=ports,
            sw_cap=1,
            total_entities=256,
            mues=tuple(number for number, urma in below if urma.name is None),
            **_shared(node, at, at + 1),  # type: ignore[arg-type]
        )
        for number, urma in below:
            own = urma.name is None
            kind = MANAGING if own else HANDED_OUT
            yield UbEntity(
                number=number,
                device=kind,
                guid=_guid(super_node, node, kind, at, 1 + urma.entities[0]),
                entity_idx=1 + urma.entities[0],
                num_ues=len(handed_out) if own else None,
                total_ues=255 if own else None,
                ues=handed_out if own else (),
                **_shared(node, at, int(number, 16)),  # type: ignore[arg-type]
            )


def _shared(node: Node, die: int, number: int) -> dict[str, object]:
    return {
        "class_code": NETWORK_CONTROLLER,
        "vendor": VENDOR,
        "type": CONTROLLER_TYPE,
        "eid": node.slot_id << 10 | number,
        "tid": number,
        "upi": 1,
        "primary_entity": f"{die + 1:05x}",
        "ubc": f"{die + 1:05x}",
        "instance": node.slot_id << 10 | 1,
        "kref": 4,
        "match_driver": True,
        "driver": "ubase",
        "primary_cna": _cna(node, die),
        "numa": node.die_numa[die],
    }


def _entity_port(super_node: SuperNode, node: Node, die: int, port: Port, peers: Peers) -> EntityPort:
    peer, up = peers.get(port.id, (None, False))
    cna = _cna(node, die, port.id.port)
    if peer is None or not up:
        return EntityPort(port.id.port, cna=cna, linkup=False, boundary=False)
    other = next((n for n in super_node.nodes if n.name == peer.node), None)
    if other is None:  # the switch of a plane: outside of this kernel's domain
        return EntityPort(port.id.port, cna=cna, linkup=True, boundary=True)
    at = other.dies.index((peer.chip, peer.die))
    return EntityPort(
        port.id.port,
        cna=cna,
        linkup=True,
        neighbor=f"{at + 1:05x}",
        neighbor_guid=_guid(super_node, other, CONTROLLER, at, 0),
        neighbor_port_idx=peer.port,
        boundary=False,
    )


def numa_nodes(node: Node) -> tuple[NumaNode, ...]:
    """The NUMA nodes of ``node``; half of a node's memory is free, what is borrowed is all free."""
    return tuple(
        NumaNode(
            id=numa.id,
            cpus=numa.cpus,
            memory_total=numa.memory,
            memory_free=_free(numa),
            distances={other.id: node.distances[numa.id][other.id] for other in node.numa},
            hugepages=(HugePages(2048, numa.hugepages_2m, numa.hugepages_2m),) if numa.hugepages_2m else (),
        )
        for numa in node.numa
    )


def _free(numa: Numa) -> int:
    return numa.memory if numa.borrowed_from else numa.memory // 8192 * 4096


def shared_memory(super_node: SuperNode, name: str) -> tuple[SharedMemory, ...]:
    """Return the OBMM regions that node ``name`` exports and imports, by id."""
    found = []
    for region in super_node.regions:
        for node, memid in region.users():
            if node != name:
                continue
            kind = "export" if node == region.owner else "import"
            details = {"preimport": "0"} if kind == "import" else {"memory_from_user": "0"}
            numa = region.numa if kind == "import" else None
            found.append(SharedMemory(memid, kind, region.size, region.numa is None, numa, details))
    return tuple(sorted(found, key=lambda memory: memory.id))

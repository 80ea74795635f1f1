"""What ``ubsectl`` asks UBSE, answered from the state of one node. Pure.

Source: reference/ub.md section 5; ubse src/controllers/{node,urma}, src/cli.
"""

from collections.abc import Iterable, Mapping

from ubhost.ubse import ubsectl
from ubhost.ubse.status import Status
from ubhost.ubse.ubsectl import (
    ClusterNode,
    DeviceQuery,
    DeviceRow,
    LimitRow,
    LoanDetail,
    MemoryStatus,
    NodeLoan,
    PhysicalLink,
)
from ubsim.scenario import Link, Node, PortId, Region, SuperNode
from ubsim.ubse import Rejected, Ubse

NODE_NOT_FOUND = 1  # any number but 0: ubsectl prints what it is told
NO_LINK = "-"
MIB = 1 << 20


def devices(query: DeviceQuery, local: Node, state: Ubse, eids: Mapping[str, tuple[str, str]]) -> bytes:
    """The reply to CLI_DEV_GET; ``eids`` has the primary EIDs of each device's members. Only our own node is known."""
    _refuse_other_slot(query.slot, local)
    found = [urma for name, urma in sorted(state.devices.items()) if not query.names or name in query.names]
    return ubsectl.encode_devices(
        DeviceRow(urma.name, not urma.is_unique, str(urma.eid), urma.members, eids[urma.name], urma.is_active)
        for urma in found
    )


def limits(body: bytes, local: Node, state: Ubse) -> bytes:
    """The reply to CLI_QOS: the exclusive devices that have a limit."""
    _refuse_other_slot(ubsectl.decode_word(body), local)
    limited = [(urma, urma.bandwidth) for _, urma in sorted(state.devices.items()) if urma.is_unique]
    return ubsectl.encode_limit_rows(
        LimitRow(urma.name, urma.members, band.min_mbps, band.max_mbps) for urma, band in limited if band is not None
    )


def activate(body: bytes, local: Node, state: Ubse) -> tuple[Ubse, bytes]:
    """ACTIVATE: every inactive device of the node, which is named by its slot as text."""
    named = ubsectl.decode_text(body)
    if named not in ("", str(local.slot_id)):
        raise Rejected(Status.ENGINE_NOT_EXIST, f"slot {named} is not ours")
    for name in state.devices:
        state = state.activate(name)
    return state, ubsectl.encode_word(0)


def cluster(super_node: SuperNode) -> bytes:
    """The reply to CLUSTER: every node with its role and the EID of the host's own bonding device."""
    return ubsectl.encode_rows(_roles(super_node.nodes).values())


def node_info(body: bytes, super_node: SuperNode, local: Node) -> bytes:
    """The reply to CLI_NODE_INFO: one node, ours if none is named."""
    named = ubsectl.decode_text(body) or str(local.slot_id)
    found = {str(slot): row for slot, row in _roles(super_node.nodes).items()}.get(named)
    if found is None:
        return ubsectl.encode_node_info(NODE_NOT_FOUND, ClusterNode(named, NO_LINK, ""))
    return ubsectl.encode_node_info(0, found)


def physical_links(super_node: SuperNode) -> bytes:
    """The reply to CLI_TOPO: every cable between two nodes once; a Clos has none, and UBSE refuses."""
    nodes = {node.name: node for node in super_node.nodes}
    if any(link.b.node not in nodes for link in super_node.links):
        raise Rejected(Status.NOT_SUPPORTED, "cables are not told in a Clos")
    return ubsectl.encode_links(sorted((_physical_link(nodes, link) for link in super_node.links), key=_order))


def node_loans(super_node: SuperNode) -> bytes:
    """The reply to CLI_NODE_BORROW: how much each node has borrowed from each other."""
    sums: dict[tuple[int, int], int] = {}
    for region in _loans(super_node):
        pair = super_node.node(region.importers[0]).slot_id, super_node.node(region.owner).slot_id
        sums[pair] = sums.get(pair, 0) + region.size
    called = {node.slot_id: _called(node) for node in super_node.nodes}
    return ubsectl.encode_rows(NodeLoan(called[a], called[b], str(sums[a, b] // MIB)) for a, b in sorted(sums))


def loan_details(super_node: SuperNode) -> bytes:
    """The reply to CLI_BORROW_DETAIL: every loan, and every import of shared memory."""
    rows = []
    for region in super_node.regions:
        kind = "numa" if region.numa is not None else "fd" if region.lease else "shm"
        size, lender = str(region.size), _called(super_node.node(region.owner))
        rows += [
            LoanDetail(region.lease or region.name, kind, _called(super_node.node(user)), size, lender, size, "done")
            for user in region.importers
        ]
    return ubsectl.encode_rows(rows)


def memory_status(super_node: SuperNode) -> bytes:
    """The reply to CLI_CHECK_STATUS: simulated memory always works."""
    return ubsectl.encode_rows(MemoryStatus(_called(node), "ok") for node in super_node.nodes)


def _loans(super_node: SuperNode) -> list[Region]:
    return [region for region in super_node.regions if region.numa is not None or region.lease]


def _physical_link(nodes: Mapping[str, Node], link: Link) -> PhysicalLink:
    ends = sorted((link.a, link.b), key=lambda end: nodes[end.node].slot_id)
    low, high = (_end(nodes[end.node], end) for end in ends)
    slots = [nodes[end.node].slot_id for end in ends]
    name = "-".join(f"{slot}/{end[1]}/{end[2]}" for slot, end in zip(slots, (low, high), strict=True))
    return PhysicalLink(*low, *high, name)


def _end(node: Node, end: PortId) -> tuple[str, str, str, str]:
    """One end of a cable: node, socket, port, and what the port is called."""
    return _called(node), str(socket_of(node, end.chip, end.die)), str(end.port), f"{end.chip}/{end.die}/{end.port}"


def _order(link: PhysicalLink) -> tuple[int, int, int, str]:
    return int(link.node.rpartition("(")[2].rstrip(")")), int(link.socket), int(link.port), link.link


def socket_of(node: Node, chip: int, die: int) -> int:
    """The dies of a machine are spread over its two sockets, in order."""
    return node.dies.index((chip, die)) * 2 // len(node.dies)


def _roles(nodes: Iterable[Node]) -> dict[int, ClusterNode]:
    """By slot. The lowest is the master, the next its stand-by, as after an election of nodes that start together."""
    ordered = sorted(nodes, key=lambda node: node.slot_id)
    roles = [("master", "standby")[at] if at < 2 else "agent" for at in range(len(ordered))]
    return {
        node.slot_id: ClusterNode(_called(node), role, str(node.devices[0].bonding_eid))
        for node, role in zip(ordered, roles, strict=True)
    }


def _called(node: Node) -> str:
    return f"{node.host_name}({node.slot_id})"


def _refuse_other_slot(slot: int, local: Node) -> None:
    if slot != local.slot_id:
        raise Rejected(Status.ENGINE_NOT_EXIST, f"devices of slot {slot} are told by its own UBSE")


def member_eids(node: Node) -> dict[str, tuple[str, str]]:
    """Return the primary EIDs of the members of each device, by the device's name."""
    return {
        device.name: (str(device.member_eids[0][0]), str(device.member_eids[1][0]))
        for device in node.devices
        if device.name is not None
    }

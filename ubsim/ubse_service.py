"""The stand-in for UBSE: one request in, one reply out, over the state of one node.

The codec is ``ubhost.ubse``'s, the rules are those of ``ubsim.ubse`` and ``ubsim.ubse_memory``; what ``ubsectl``
asks is in ``ubsim.ubse_cli``. Operations that we could read no source of are answered NOT_SUPPORTED.

Source: reference/ub.md sections 5, 6.3 and 8.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from ubhost.errors import InvalidRequest
from ubhost.provider import Bandwidth
from ubhost.ubse import bodies, shm, ubsectl
from ubhost.ubse.shm import ShmOp
from ubhost.ubse.status import Status
from ubhost.ubse.wire import Malformed, MemOp, Module, NodeOp, Reply, Request, UrmaOp
from ubsim import ubse_cli
from ubsim.faults import Faults, When
from ubsim.hosts import is_usable, peers_of
from ubsim.kernel import Log
from ubsim.scenario import Node, SuperNode
from ubsim.ubcore import Refused
from ubsim.ubse import Rejected, Ubse, Urma

LEND_RATIO = 100  # per cent, UBSE's own default (system.pool.memory.ratio)
OPERATIONS: dict[tuple[int, int], str] = {
    (Module.URMA, UrmaOp.QOS_SET): "set_bandwidth",
    (Module.URMA, UrmaOp.QOS_GET): "bandwidth",
    (Module.URMA, UrmaOp.QOS_RESET): "reset_bandwidth",
    (Module.URMA, UrmaOp.DEV_GET): "devices",
    (Module.URMA, UrmaOp.DEV_ALLOC): "allocate",
    (Module.URMA, UrmaOp.DEV_FREE): "free",
    (Module.URMA, UrmaOp.ACTIVATE): "activate",
    (Module.URMA, UrmaOp.CLI_DEV_GET): "cli_devices",
    (Module.URMA, UrmaOp.CLI_QOS): "cli_bandwidth",
    (Module.NODE, NodeOp.CLI_TOPO): "cli_links",
    (Module.MEM, MemOp.CLI_NODE_BORROW): "cli_node_loans",
    (Module.MEM, MemOp.CLI_BORROW_DETAIL): "cli_loans",
    (Module.MEM, MemOp.CLI_CHECK_STATUS): "cli_memory_status",
    (Module.NODE, NodeOp.CLUSTER): "cluster",
    (Module.NODE, NodeOp.CLI_NODE_INFO): "node_info",
    (Module.NODE, NodeOp.LIST): "nodes",
    (Module.NODE, NodeOp.CPU_TOPO): "cpu_links",
    (Module.NODE, NodeOp.NUMA_MEM): "numa_memory",
    (Module.NODE, NodeOp.NODE_GET): "local_node",
    (Module.MEM, MemOp.FD_CREATE): "create_fd",
    (Module.MEM, MemOp.FD_WITH_LEND): "create_fd",
    (Module.MEM, MemOp.FD_GET): "fd",
    (Module.MEM, MemOp.FD_LIST): "fds",
    (Module.MEM, MemOp.FD_DELETE): "delete_fd",
    (Module.MEM, MemOp.NUMA_CREATE): "create_numa",
    (Module.MEM, MemOp.NUMA_WITH_LEND): "create_numa",
    (Module.MEM, MemOp.NUMA_GET): "numa",
    (Module.MEM, MemOp.NUMA_LIST): "numas",
    (Module.MEM, MemOp.NUMA_DELETE): "delete_numa",
    **{(shm.MODULE, op): f"{op.name.lower()}_shared" for op in ShmOp},
}
"""What operations are called in the log and in faults."""

NAMED = frozenset({UrmaOp.QOS_SET, UrmaOp.QOS_GET, UrmaOp.QOS_RESET, UrmaOp.DEV_ALLOC, UrmaOp.DEV_FREE})
"""URMA operations whose request begins with the name of a device."""

Handler = Callable[[bytes, int], bytes]
Desks = Mapping[int, Mapping[int, Handler]]  # module -> operation -> who does it: those of the whole super-node


class Service:
    """UBSE of one node. Safe for threads."""

    def __init__(self, super_node: SuperNode, node: Node, desks: Desks, *, faults: Faults, log: Log) -> None:
        self.state = Ubse({d.name: d for d in handed_out(super_node, node)}, super_node.ubse_owners)
        self._super_node = super_node
        self._node = node
        self._faults = faults
        self._log = log
        self._desks = desks
        self._lock = threading.Lock()
        self._handlers: dict[tuple[int, int], Handler] = {
            (Module.URMA, UrmaOp.DEV_GET): self._devices,
            (Module.URMA, UrmaOp.DEV_ALLOC): self._allocate,
            (Module.URMA, UrmaOp.DEV_FREE): self._free,
            (Module.URMA, UrmaOp.QOS_SET): self._limit,
            (Module.URMA, UrmaOp.QOS_GET): self._limit_of,
            (Module.URMA, UrmaOp.QOS_RESET): self._unlimit,
            (Module.URMA, UrmaOp.ACTIVATE): self._activate,
            (Module.URMA, UrmaOp.CLI_DEV_GET): self._cli_devices,
            (Module.URMA, UrmaOp.CLI_QOS): lambda body, _: ubse_cli.limits(body, self._node, self.state),
            (Module.NODE, NodeOp.CLI_TOPO): lambda _, __: ubse_cli.physical_links(self._super_node),
            (Module.MEM, MemOp.CLI_NODE_BORROW): lambda _, __: ubse_cli.node_loans(self._super_node),
            (Module.MEM, MemOp.CLI_BORROW_DETAIL): lambda _, __: ubse_cli.loan_details(self._super_node),
            (Module.MEM, MemOp.CLI_CHECK_STATUS): lambda _, __: ubse_cli.memory_status(self._super_node),
            (Module.NODE, NodeOp.CLUSTER): lambda _, __: ubse_cli.cluster(self._super_node),
            (Module.NODE, NodeOp.CLI_NODE_INFO): lambda body, _: ubse_cli.node_info(body, self._super_node, self._node),
            (Module.NODE, NodeOp.LIST): self._nodes,
            (Module.NODE, NodeOp.NODE_GET): self._local_node,
            (Module.NODE, NodeOp.CPU_TOPO): self._cpu_links,
            (Module.NODE, NodeOp.NUMA_MEM): self._numa_memory,
        }

    def call(self, request: Request, uid: int) -> Reply:
        """Answer one request of user ``uid``."""
        key = (request.module, request.op)
        operation = OPERATIONS.get(key, f"module {request.module} op {request.op}")
        device = _device(request)
        try:
            self._faults.meet(operation, device)
            body = self._handle(request, uid, operation)
            self._faults.meet(operation, device, When.AFTER)
        except Rejected as rejected:
            status = rejected.code
        except Refused:  # a fault on order speaks in errnos
            status = Status.ENGINE_INTERNAL
        except (Malformed, InvalidRequest):
            status = Status.INVALID_ARG
        else:
            self._log.add(operation, device, f"uid={uid}")
            return Reply(Status.SUCCESS, body)
        self._log.add(operation, device, f"uid={uid}", status.name)
        return Reply(status)

    def _handle(self, request: Request, uid: int, operation: str) -> bytes:
        """Memory is the whole super-node's: its desk has locks of its own, for we will be told of the change."""
        if desk := self._desks.get(request.module, {}).get(request.op):
            return desk(request.body, uid)
        handler = self._handlers.get((request.module, request.op))
        if handler is None:
            raise Rejected(Status.NOT_SUPPORTED, f"the simulator has no {operation}")
        with self._lock:
            return handler(request.body, uid)

    def follow(self, super_node: SuperNode) -> None:
        """The super-node is another: devices came, went or changed their health. Who holds what stays."""
        with self._lock:
            self._super_node = super_node
            self._node = super_node.node(self._node.name)
            found = {device.name: device for device in handed_out(super_node, self._node)}
            for name, device in found.items():
                if (known := self.state.devices.get(name)) is not None:
                    found[name] = replace(known, is_healthy=device.is_healthy)
            self.state = Ubse(found, super_node.ubse_owners)

    # URMA

    def _devices(self, body: bytes, _: int) -> bytes:
        shared = bodies.decode_urma_type(body)
        found = [device for _, device in sorted(self.state.devices.items()) if device.is_unique is not shared]
        return bodies.encode_urma_list(bodies.UrmaInfo(d.name, d.is_healthy, d.hw_res_id) for d in found)

    def _allocate(self, body: bytes, uid: int) -> bytes:
        name = bodies.decode_urma_name(body)
        self.state = self.state.allocate(name, uid)
        device = self.state.named(name)
        return bodies.UrmaPaths(device.bonding, device.members, device.eid).encode()

    def _free(self, body: bytes, uid: int) -> bytes:
        self.state = self.state.free(bodies.decode_urma_name(body), uid)
        return b""

    def _limit(self, body: bytes, uid: int) -> bytes:
        asked = bodies.QosSet.decode(body)
        self.state = self.state.limit(asked.name, Bandwidth(asked.min_mbps, asked.max_mbps), uid)
        return b""

    def _limit_of(self, body: bytes, _: int) -> bytes:
        limits = self.state.limit_of(bodies.decode_urma_name(body))
        return bodies.encode_limits(limits.min_mbps, limits.max_mbps)

    def _unlimit(self, body: bytes, uid: int) -> bytes:
        self.state = self.state.unlimit(bodies.decode_urma_name(body), uid)
        return b""

    def _activate(self, body: bytes, _: int) -> bytes:
        self.state, reply = ubse_cli.activate(body, self._node, self.state)
        return reply

    def _cli_devices(self, body: bytes, _: int) -> bytes:
        query = ubsectl.DeviceQuery.decode(body)
        return ubse_cli.devices(query, self._node, self.state, ubse_cli.member_eids(self._node))

    # NODE

    def _nodes(self, _: bytes, __: int) -> bytes:
        return bodies.encode_node_list(_info(node) for node in self._super_node.nodes)

    def _local_node(self, _: bytes, __: int) -> bytes:
        return _info(self._node).encode()

    def _cpu_links(self, _: bytes, __: int) -> bytes:
        nodes = {node.name: node for node in self._super_node.nodes}
        found = {
            bodies.CpuLink(
                nodes[link.a.node].slot_id,
                ubse_cli.socket_of(nodes[link.a.node], link.a.chip, link.a.die),
                nodes[link.b.node].slot_id,
                ubse_cli.socket_of(nodes[link.b.node], link.b.chip, link.b.die),
            )
            for link in self._super_node.links
            if link.is_up and link.b.node in nodes
        }
        order = sorted(found, key=lambda k: (k.slot_id, k.socket_id, k.peer_slot_id, k.peer_socket_id))
        return bodies.encode_cpu_links(order)

    def _numa_memory(self, body: bytes, _: int) -> bytes:
        slot = bodies.decode_slot(body)
        node = next((node for node in self._super_node.nodes if node.slot_id == slot), None)
        if node is None:
            raise Rejected(Status.ENGINE_NOT_EXIST, f"no node sits in slot {slot}")
        return bodies.encode_numa_memory(
            bodies.NumaMemory(
                slot, at % 2, numa.id, numa.borrowed_from is not None, LEND_RATIO, numa.memory, numa.memory,
                numa.hugepages_2m, numa.hugepages_2m,
            )
            for at, numa in enumerate(node.numa)
        )  # fmt: skip


def handed_out(super_node: SuperNode, node: Node) -> list[Urma]:
    """Return what UBSE of ``node`` hands out: every bonding device but the host's own."""
    peers = peers_of(super_node, node.name)
    return [
        Urma(
            name=device.name,
            bonding=device.bonding,
            members=device.members,
            eid=device.bonding_eid,
            hw_res_id=int(device.bonding.rpartition("_")[2]),
            is_unique=device.is_unique,
            is_healthy=is_usable(node, device, peers),
            is_active=device.is_active,
        )
        for device in node.devices
        if device.name is not None
    ]


def _info(node: Node) -> bodies.NodeInfo:
    return bodies.NodeInfo(node.slot_id, (0, 1), node.host_name)


def _device(request: Request) -> str:
    if request.module == Module.NODE or (request.module == Module.URMA and request.op not in NAMED):
        return ""
    return request.body.partition(b"\0")[0][: bodies.URMA_NAME].decode(errors="replace")

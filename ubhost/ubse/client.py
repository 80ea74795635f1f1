"""A client of UBSE: one connection a call, at most two at once.

UBSE grants eight connections to each user, shared with every other program of that user, so we never take more
than two, and none for longer than a call.

Source: reference/ub.md sections 5, 6.3 and 8.
"""

import socket
import threading
import time
from pathlib import Path

from ubhost.errors import Busy, HostFault, InvalidRequest, NotFound, Unsupported
from ubhost.ubse import bodies, memory, shm, ubsectl, wire
from ubhost.ubse.generation import Generation
from ubhost.ubse.shm import ShmOp
from ubhost.ubse.status import Status, reason
from ubhost.ubse.wire import MemOp, Module, NodeOp, UrmaOp

MAX_CONNECTIONS = 2  # of the 8 that UBSE grants to a user
STEP_MBPS = 8

_slots = threading.BoundedSemaphore(MAX_CONNECTIONS)  # of this process, however many clients it has


class Absent(Unsupported):
    """There is no UBSE on this host."""


class Down(Busy):
    """UBSE belongs to this host, but nobody listens now: it is starting, stopped, or broken."""


class Ubse:
    """UBSE behind one socket; safe to share between threads.

    Every method may raise ``Absent``, ``Down``, ``HostFault`` (it broke off, or answered nonsense or too late),
    ``Busy`` (it or we have no connection to spare), and the reason for UBSE's own status, whose cause is a
    ``UbseStatus``.
    """

    def __init__(self, path: Path, *, timeout_s: float = 10) -> None:
        """``timeout_s`` bounds a call from its first to its last byte; UBSE itself gives a request 60 s."""
        self._path = path
        self._timeout_s = timeout_s

    @property
    def is_installed(self) -> bool:
        """Whether this host has a UBSE, running or not: its folder for sockets or its configuration is there."""
        root = self._path.parents[2]
        return self._path.parent.is_dir() or (root / "etc/ubse").is_dir()

    def generation(self) -> Generation:
        """Find out whether UBSE speaks the protocol that we know, by a call that changes nothing."""
        try:
            self.nodes()
        except (wire.Malformed, Unsupported, NotFound):
            newer = wire.Request(wire.NEWER_NODE_MODULE, NodeOp.LIST).encode()
            reply = self._ask(newer, "UBSE LIST of nodes, newer numbers")
            return Generation.NEWER if reply.status == Status.SUCCESS else Generation.UNKNOWN
        return Generation.KNOWN

    # URMA

    def urma_devices(self, *, shared: bool = False) -> tuple[bodies.UrmaInfo, ...]:
        """Return the devices for one holder each, or those for many, with their health."""
        body = bodies.encode_urma_type(shared=shared)
        return bodies.decode_urma_list(self._call(Module.URMA, UrmaOp.DEV_GET, body, "devices"))

    def allocate(self, device: str) -> bodies.UrmaPaths:
        """Take ``device``; return the kernel devices it is made of."""
        body = bodies.encode_urma_name(device)
        return bodies.UrmaPaths.decode(self._call(Module.URMA, UrmaOp.DEV_ALLOC, body, device))

    def free(self, device: str) -> None:
        self._call(Module.URMA, UrmaOp.DEV_FREE, bodies.encode_urma_name(device), device)

    def bandwidth(self, device: str) -> tuple[int, int]:
        """Return (min, max) in megabits a second.

        Raises:
            NotFound: there is no such device, or it has no limit.
        """
        body = bodies.encode_urma_name(device)
        return bodies.decode_limits(self._call(Module.URMA, UrmaOp.QOS_GET, body, device))

    def set_bandwidth(self, device: str, min_mbps: int, max_mbps: int) -> None:
        """Limit an exclusive device.

        Raises:
            InvalidRequest: not steps of 8, or min above max: UBSE would round the first and refuse the second.
        """
        if min_mbps % STEP_MBPS or max_mbps % STEP_MBPS or not 0 <= min_mbps <= max_mbps:
            raise InvalidRequest(
                f"{device}: bandwidth {min_mbps} to {max_mbps} Mb/s must be multiples of {STEP_MBPS} with min <= max"
            )
        body = bodies.QosSet(device, min_mbps, max_mbps).encode()
        self._call(Module.URMA, UrmaOp.QOS_SET, body, f"{device} to {min_mbps}-{max_mbps} Mb/s")

    def reset_bandwidth(self, device: str) -> None:
        self._call(Module.URMA, UrmaOp.QOS_RESET, bodies.encode_urma_name(device), device)

    def device_rows(self, slot_id: int, *names: str) -> tuple[ubsectl.DeviceRow, ...]:
        """Return the devices of a node, all or by name, with their members: as ``ubsectl display urma``."""
        body = ubsectl.DeviceQuery(slot_id, names).encode()
        return ubsectl.decode_devices(self._call(Module.URMA, UrmaOp.CLI_DEV_GET, body, f"devices of slot {slot_id}"))

    def limit_rows(self, slot_id: int) -> tuple[ubsectl.LimitRow, ...]:
        """Return the limits set on devices of a node: as ``ubsectl display urma-qos``."""
        body = ubsectl.encode_word(slot_id)
        return ubsectl.decode_limit_rows(self._call(Module.URMA, UrmaOp.CLI_QOS, body, f"limits of slot {slot_id}"))

    def activate(self, slot_id: int) -> None:
        """Wake every inactive device of a node: as ``ubsectl activate urma``."""
        what = f"devices of slot {slot_id}"
        result = ubsectl.decode_word(self._call(Module.URMA, UrmaOp.ACTIVATE, ubsectl.encode_text(str(slot_id)), what))
        if result:
            raise reason(result, f"UBSE ACTIVATE of {what}")

    # NODE

    def cluster(self) -> tuple[ubsectl.ClusterNode, ...]:
        """Return every node with its role: as ``ubsectl display cluster``."""
        body = self._call(Module.NODE, NodeOp.CLUSTER, ubsectl.NOTHING, "the cluster")
        return ubsectl.decode_rows(ubsectl.ClusterNode, body)

    def cluster_node(self, slot_id: int) -> ubsectl.ClusterNode:
        """Return one node with its role: as ``ubsectl display node``.

        Raises:
            NotFound: no node of the cluster sits in that slot, or it does not answer.
        """
        body = ubsectl.encode_text(str(slot_id))
        code, node = ubsectl.decode_node_info(self._call(Module.NODE, NodeOp.CLI_NODE_INFO, body, f"slot {slot_id}"))
        if code:
            raise NotFound(f"UBSE has no working node in slot {slot_id}: code {code}")
        return node

    def physical_links(self) -> tuple[ubsectl.PhysicalLink, ...]:
        """Return every cable of the super-node: as ``ubsectl display topo``.

        Raises:
            Unsupported: the super-node is a Clos.
        """
        return ubsectl.decode_links(self._call(Module.NODE, NodeOp.CLI_TOPO, b"query cpu", "cables"))

    def nodes(self) -> tuple[bodies.NodeInfo, ...]:
        """Return every node of the super-node."""
        return bodies.decode_node_list(self._call(Module.NODE, NodeOp.LIST, b"", "nodes"))

    def local_node(self) -> bodies.NodeInfo:
        return bodies.NodeInfo.decode(self._call(Module.NODE, NodeOp.NODE_GET, b"", "the local node"))

    def cpu_links(self) -> tuple[bodies.CpuLink, ...]:
        """Return which sockets of which nodes reach one another."""
        return bodies.decode_cpu_links(self._call(Module.NODE, NodeOp.CPU_TOPO, b"", "links"))

    def numa_memory(self, slot_id: int) -> tuple[bodies.NumaMemory, ...]:
        """Return the memory of one node, and how much of it may be lent."""
        body = bodies.encode_slot(slot_id)
        return bodies.decode_numa_memory(self._call(Module.NODE, NodeOp.NUMA_MEM, body, f"memory of slot {slot_id}"))

    # MEM

    def create_fd(self, request: memory.FdCreate | memory.FdWithLender) -> memory.FdMemory:
        """Borrow memory as device nodes.

        Raises:
            Conflict: there is one of that name.
            Exhausted: nobody can lend it.
        """
        op = MemOp.FD_CREATE if isinstance(request, memory.FdCreate) else MemOp.FD_WITH_LEND
        return memory.FdMemory.decode(self._call(Module.MEM, op, request.encode(), request.name))

    def fd(self, name: str) -> memory.FdMemory:
        return memory.FdMemory.decode(self._call(Module.MEM, MemOp.FD_GET, memory.encode_mem_name(name), name))

    def fds(self) -> tuple[memory.FdMemory, ...]:
        """Return what the calling user borrowed as device nodes."""
        return memory.decode_fd_list(self._call(Module.MEM, MemOp.FD_LIST, b"", "borrowed memory"))

    def delete_fd(self, name: str) -> None:
        self._call(Module.MEM, MemOp.FD_DELETE, memory.encode_mem_name(name), name)

    def create_numa(self, request: memory.NumaCreate | memory.NumaWithLender) -> memory.NumaRegion:
        """Borrow memory as a NUMA node."""
        op = MemOp.NUMA_CREATE if isinstance(request, memory.NumaCreate) else MemOp.NUMA_WITH_LEND
        return memory.NumaRegion.decode(self._call(Module.MEM, op, request.encode(), request.name))

    def numa(self, name: str) -> memory.NumaRegion:
        return memory.NumaRegion.decode(self._call(Module.MEM, MemOp.NUMA_GET, memory.encode_mem_name(name), name))

    def numas(self) -> tuple[memory.NumaRegion, ...]:
        """Return what the calling user borrowed as NUMA nodes."""
        return memory.decode_numa_list(self._call(Module.MEM, MemOp.NUMA_LIST, b"", "borrowed NUMA nodes"))

    def delete_numa(self, name: str) -> None:
        self._call(Module.MEM, MemOp.NUMA_DELETE, memory.encode_mem_name(name), name)

    # Shared memory; so far the stand-in alone answers (see ``ubhost.ubse.shm``)

    def create_shm(self, request: shm.ShmCreate) -> shm.Shm:
        """Export memory that nodes may attach.

        Raises:
            Conflict: there is one of that name.
            Exhausted: nobody can spare it.
            Unsupported: this UBSE knows no shared memory, or speaks of it in a form that we do not know.
        """
        return shm.Shm.decode(self._call(shm.MODULE, ShmOp.CREATE, request.encode(), request.name))

    def attach_shm(self, name: str) -> shm.Shm:
        """Import it here; nothing happens if it is."""
        return shm.Shm.decode(self._call(shm.MODULE, ShmOp.ATTACH, memory.encode_mem_name(name), name))

    def detach_shm(self, name: str) -> None:
        """Unimport it here.

        Raises:
            Busy: a process of this host has it open or mapped.
        """
        self._call(shm.MODULE, ShmOp.DETACH, memory.encode_mem_name(name), name)

    def get_shm(self, name: str) -> shm.Shm:
        return shm.Shm.decode(self._call(shm.MODULE, ShmOp.GET, memory.encode_mem_name(name), name))

    def shms(self) -> tuple[shm.Shm, ...]:
        """Return all shared memory of the super-node."""
        return shm.decode_list(self._call(shm.MODULE, ShmOp.LIST, b"", "shared memory"))

    def delete_shm(self, name: str) -> None:
        """Unexport it.

        Raises:
            Busy: a node has it attached.
        """
        self._call(shm.MODULE, ShmOp.DELETE, memory.encode_mem_name(name), name)

    def node_loans(self) -> tuple[ubsectl.NodeLoan, ...]:
        """Return how much each node borrowed from each: as ``ubsectl display memory -t node_borrow``."""
        body = self._call(Module.MEM, MemOp.CLI_NODE_BORROW, ubsectl.NOTHING, "loans by node")
        return ubsectl.decode_rows(ubsectl.NodeLoan, body)

    def loans(self) -> tuple[ubsectl.LoanDetail, ...]:
        """Return every loan of the super-node, of all users: as ``ubsectl display memory -t borrow_detail``."""
        body = self._call(Module.MEM, MemOp.CLI_BORROW_DETAIL, ubsectl.NOTHING, "loans")
        return ubsectl.decode_rows(ubsectl.LoanDetail, body)

    def memory_status(self) -> tuple[ubsectl.MemoryStatus, ...]:
        """Return whether memory can be borrowed on each node: as ``ubsectl check memory``."""
        body = self._call(Module.MEM, MemOp.CLI_CHECK_STATUS, ubsectl.NOTHING, "the memory pool")
        return ubsectl.decode_rows(ubsectl.MemoryStatus, body)

    def _call(self, module: int, op: UrmaOp | NodeOp | MemOp | ShmOp, body: bytes, subject: str) -> bytes:
        what = f"UBSE {op.name} of {subject}"
        reply = self._ask(wire.Request(module, op, body).encode(), what)
        if reply.status != Status.SUCCESS:
            raise reason(reply.status, what)
        return reply.body

    def _ask(self, request: bytes, what: str) -> wire.Reply:
        if not _slots.acquire(timeout=self._timeout_s):
            raise Busy(f"{what}: {MAX_CONNECTIONS} other calls have been waiting for {self._timeout_s:g} s")
        try:
            return self._exchange(request, what)
        finally:
            _slots.release()

    def _exchange(self, request: bytes, what: str) -> wire.Reply:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            deadline = time.monotonic() + self._timeout_s
            connection.settimeout(self._timeout_s)
            try:
                connection.connect(str(self._path))
            except (FileNotFoundError, ConnectionRefusedError) as error:
                if self.is_installed:
                    raise Down(f"UBSE is not running: nobody listens at {self._path}") from error
                raise Absent(f"there is no UBSE on this host: no {self._path.parent}") from error
            except OSError as error:
                raise HostFault(f"{what}: cannot connect to {self._path}: {error.strerror or error}") from error
            try:
                connection.sendall(request)
                status, length = wire.reply_header(_read(connection, wire.REPLY.size, what, deadline))
                return wire.Reply(status, _read(connection, length, what, deadline))
            except OSError as error:
                raise HostFault(f"{what}: {error.strerror or error}") from error


def _read(connection: socket.socket, size: int, what: str, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        part = connection.recv(size - len(data))
        if not part:
            raise HostFault(f"{what}: UBSE hung up after {len(data)} of {size} bytes")
        data += part
    return bytes(data)

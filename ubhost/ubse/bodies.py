"""What UBSE's URMA and NODE operations say: values to bodies and back, for client and stand-in server. Pure.

``encode`` makes the bytes, the class method ``decode`` reads them; an operation that is not here has an empty body
or only a name.

Source: reference/ub.md section 5 (ubse src/sdk/{ubs_engine_urma,ubs_engine_topo}.c, libubse_helper.c).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ubhost.errors import InvalidRequest
from ubhost.model import Eid
from ubhost.ubse import wire
from ubhost.ubse.wire import Body

URMA_NAME = 32  # bytes with the NUL, UBS_URMA_NAME_MAX
URMA_PATH = 64  # UBS_MAX_URMA_PATH_LENGTH
HOST_NAME = 64  # HOST_NAME_MAX
SOCKETS = 2  # UBS_TOPO_SOCKET_NUM

DEVICE_FOLDER = "/dev/uburma/"


@dataclass(frozen=True, slots=True)
class UrmaInfo:
    """One line of DEV_GET: what could be allocated."""

    name: str
    is_healthy: bool = True  # 0 on the wire
    hw_res_id: int = 0


@dataclass(frozen=True, slots=True)
class UrmaPaths:
    """The reply to DEV_ALLOC: kernel devices by name, without the /dev/uburma/ in front that UBSE sends."""

    bonding: str
    entities: tuple[str, str]
    bonding_eid: Eid

    def encode(self) -> bytes:
        paths = (DEVICE_FOLDER + device for device in (self.bonding, *self.entities))
        return b"".join(map(wire.text, (*paths, str(self.bonding_eid))))

    @classmethod
    def read(cls, body: Body) -> "UrmaPaths":
        bonding, first, second = (_device_name(body.text(URMA_PATH)) for _ in range(3))
        return cls(bonding, (first, second), _eid(body.text(URMA_PATH)))

    @classmethod
    def decode(cls, data: bytes) -> "UrmaPaths":
        return wire.whole(data, cls.read)


def _device_name(path: str) -> str:
    device = path.removeprefix(DEVICE_FOLDER)
    if not device or "/" in device or device.startswith("."):
        raise wire.Malformed(f"UBSE sent {path!r} where a device in {DEVICE_FOLDER} should be")
    return device


def _eid(text: str) -> Eid:
    try:
        return Eid.parse(text)
    except InvalidRequest as error:
        raise wire.Malformed(f"UBSE sent a wrong EID: {error}") from error


def encode_urma_list(devices: Iterable[UrmaInfo]) -> bytes:
    return wire.listed(
        wire.text(d.name) + wire.u32(0 if d.is_healthy else 1) + wire.host_u64(d.hw_res_id) for d in devices
    )


def decode_urma_list(data: bytes) -> tuple[UrmaInfo, ...]:
    def read(body: Body) -> UrmaInfo:
        return UrmaInfo(body.text(URMA_NAME), body.u32() == 0, body.host_u64())

    return wire.whole(data, lambda body: body.listed(read, item_size=16))


def encode_urma_type(*, shared: bool) -> bytes:
    """The request of DEV_GET: the C side sets the first of four bytes."""
    return bytes([shared, 0, 0, 0])


def decode_urma_type(data: bytes) -> bool:
    return Body(data).take(4)[0] == 1


def encode_urma_name(device: str) -> bytes:
    """The request of DEV_ALLOC, DEV_FREE, QOS_GET and QOS_RESET."""
    return wire.name(device, URMA_NAME)


def decode_urma_name(data: bytes) -> str:
    return wire.whole(data, lambda body: body.name(URMA_NAME))


@dataclass(frozen=True, slots=True)
class QosSet:
    """Megabits a second, in steps of 8."""

    name: str
    min_mbps: int
    max_mbps: int

    def encode(self) -> bytes:
        return encode_urma_name(self.name) + encode_limits(self.min_mbps, self.max_mbps)

    @classmethod
    def decode(cls, data: bytes) -> "QosSet":
        return wire.whole(data, lambda body: cls(body.name(URMA_NAME), body.u32(), body.u32()))


def encode_limits(min_mbps: int, max_mbps: int) -> bytes:
    """The reply to QOS_GET."""
    return wire.u32(min_mbps) + wire.u32(max_mbps)


def decode_limits(data: bytes) -> tuple[int, int]:
    return wire.whole(data, lambda body: (body.u32(), body.u32()))


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node of the super-node."""

    slot_id: int
    socket_ids: tuple[int, int]
    host_name: str

    def encode(self) -> bytes:
        ids = wire.u32(self.slot_id) + b"".join(map(wire.u32, self.socket_ids))
        return ids + wire.field(self.host_name, HOST_NAME)

    @classmethod
    def read(cls, body: Body) -> "NodeInfo":
        return cls(body.u32(), (body.u32(), body.u32()), body.field(HOST_NAME))

    @classmethod
    def decode(cls, data: bytes) -> "NodeInfo":
        """The reply to NODE_GET."""
        return wire.whole(data, cls.read)


def encode_node_list(nodes: Iterable[NodeInfo]) -> bytes:
    return wire.listed(node.encode() for node in nodes)


def decode_node_list(data: bytes) -> tuple[NodeInfo, ...]:
    return wire.whole(data, lambda body: body.listed(NodeInfo.read, item_size=4 + 4 * SOCKETS + HOST_NAME))


@dataclass(frozen=True, slots=True)
class CpuLink:
    """A socket of one node that reaches a socket of another (CPU_TOPO)."""

    slot_id: int
    socket_id: int
    peer_slot_id: int
    peer_socket_id: int


def encode_cpu_links(links: Iterable[CpuLink]) -> bytes:
    return wire.listed(
        b"".join(map(wire.u32, (k.slot_id, k.socket_id, k.peer_slot_id, k.peer_socket_id))) for k in links
    )


def decode_cpu_links(data: bytes) -> tuple[CpuLink, ...]:
    def read(body: Body) -> CpuLink:
        return CpuLink(body.u32(), body.u32(), body.u32(), body.u32())

    return wire.whole(data, lambda body: body.listed(read, item_size=16))


@dataclass(frozen=True, slots=True)
class NumaMemory:
    """Memory of one NUMA node of any node of the super-node (NUMA_MEM). Sizes in bytes, hugepages of 2 MiB."""

    slot_id: int
    socket_id: int
    numa_id: int
    is_remote: bool
    lend_ratio: int  # per cent that may be lent
    total: int
    free: int
    huge_pages: int
    free_huge_pages: int

    def encode(self) -> bytes:
        head = (self.slot_id, self.socket_id, self.numa_id, int(self.is_remote), self.lend_ratio)
        sizes = wire.u64(self.total) + wire.u64(self.free)
        return b"".join(map(wire.u32, head)) + sizes + wire.u32(self.huge_pages) + wire.u32(self.free_huge_pages)

    @classmethod
    def read(cls, body: Body) -> "NumaMemory":
        slot, socket, numa, kind, ratio = (body.u32() for _ in range(5))
        return cls(slot, socket, numa, kind != 0, ratio, body.u64(), body.u64(), body.u32(), body.u32())


def encode_slot(slot_id: int) -> bytes:
    """The request of NUMA_MEM: a node, in host order (the C side copies its own variable)."""
    return wire.host_u32(slot_id)


def decode_slot(data: bytes) -> int:
    return wire.whole(data, Body.host_u32)


def encode_numa_memory(items: Iterable[NumaMemory]) -> bytes:
    return wire.listed(item.encode() for item in items)


def decode_numa_memory(data: bytes) -> tuple[NumaMemory, ...]:
    return wire.whole(data, lambda body: body.listed(NumaMemory.read, item_size=44))

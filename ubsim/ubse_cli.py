"""What ``ubsectl`` asks UBSE, in UBSE's internal serialisation: values to bytes and back. Pure.

A message is three words (0xff, alignment minus one, length of the whole) and then items: a word with the type in its
top byte and the length in the others, and the value, filled up to 4 bytes. All numbers are in the host's order. A list
is an item of type 65 with the count, and its elements; a message inside a message is one of type 66.

Operations as of the heads of May 2026 (reference/ub.md section 5): CLUSTER, CLI_NODE_INFO, CLI_DEV_GET, CLI_QOS and
ACTIVATE. CLI_TOPO is left out: its types are not told by any source we read.

Source: ubse src/framework/serde/ubse_serial_util.{h,cpp}, ubse_type_util.cpp; src/cli/ubse_cli_{node,urma}_cmd_reg.cpp.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ubhost.provider import Bandwidth
from ubhost.ubse.status import Status
from ubhost.ubse.wire import Malformed
from ubsim.scenario import Node, SuperNode
from ubsim.ubse import Rejected, Ubse

HEAD = struct.Struct("=III")
WORD = struct.Struct("=I")
HEAD_CODE, ARRAY, NESTED = 0xFF, 65, 66
U32, SIZE, TEXT = 11, 12, 34  # unsigned int, unsigned long, std::string
LENGTH_MASK = (1 << 24) - 1
ALIGN = 4
ACTIVE, INACTIVE = 0, 1
NODE_NOT_FOUND = 1  # any number but 0: ubsectl prints what it is told


class Writer:
    """Builds one message."""

    def __init__(self) -> None:
        self._items = b""

    def u32(self, value: int) -> "Writer":
        return self._add(U32, WORD.pack(value))

    def size(self, value: int) -> "Writer":
        return self._add(SIZE, struct.pack("=Q", value))

    def text(self, value: str) -> "Writer":
        return self._add(TEXT, value.encode() + b"\0")

    def texts(self, values: tuple[str, ...]) -> "Writer":
        self._items += WORD.pack(ARRAY << 24 | len(values))
        for value in values:
            self.text(value)
        return self

    def nested(self, kid: "Writer") -> "Writer":
        return self._add(NESTED, kid.encode())

    def encode(self) -> bytes:
        return HEAD.pack(HEAD_CODE, ALIGN - 1, HEAD.size + len(self._items)) + self._items

    def _add(self, kind: int, value: bytes) -> "Writer":
        self._items += WORD.pack(kind << 24 | len(value)) + value + bytes(-len(value) % ALIGN)
        return self


class Reader:
    """Reads one message from front to back; raises ``Malformed`` when an item is not what it should be."""

    def __init__(self, data: bytes) -> None:
        if len(data) < HEAD.size or HEAD.unpack_from(data) != (HEAD_CODE, ALIGN - 1, len(data)):
            raise Malformed(f"{data[:12].hex()} does not open a message of ubsectl")
        self._data = data
        self._at = HEAD.size

    def u32(self) -> int:
        return int(WORD.unpack(self._take(U32))[0])

    def size(self) -> int:
        return int(struct.unpack("=Q", self._take(SIZE))[0])

    def text(self) -> str:
        try:
            return self._take(TEXT).rstrip(b"\0").decode()
        except UnicodeDecodeError as error:
            raise Malformed(f"a text of ubsectl is not UTF-8: {error}") from None

    def texts(self) -> tuple[str, ...]:
        count = self._head(ARRAY)
        self._at += WORD.size
        return tuple(self.text() for _ in range(min(count, len(self._data))))

    def nested(self) -> "Reader":
        return Reader(self._take(NESTED))

    def is_next(self, kind: int) -> bool:
        return len(self._data) - self._at >= WORD.size and WORD.unpack_from(self._data, self._at)[0] >> 24 == kind

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._data)

    def _take(self, kind: int) -> bytes:
        length = self._head(kind)
        start = self._at + WORD.size
        if start + length > len(self._data) or (kind == U32 and length != 4) or (kind == SIZE and length != 8):
            raise Malformed(f"an item of {length} bytes does not fit")
        self._at = start + length + -length % ALIGN
        return self._data[start : start + length]

    def _head(self, kind: int) -> int:
        if not self.is_next(kind):
            raise Malformed(f"no item of type {kind} where one should be")
        return int(WORD.unpack_from(self._data, self._at)[0]) & LENGTH_MASK


@dataclass(frozen=True, slots=True)
class DeviceQuery:
    """CLI_DEV_GET: the devices of a node, all or by name. Older heads also sent a type, newer ones do not."""

    slot: int
    names: tuple[str, ...]

    @classmethod
    def decode(cls, body: bytes) -> "DeviceQuery":
        reader = Reader(body)
        slot, count = reader.u32(), reader.u32()
        if reader.is_next(U32):  # what we took for the count was the type
            count = reader.u32()
        return cls(slot, tuple(reader.text() for _ in range(min(count, len(body)))))


def devices(query: DeviceQuery, local: Node, state: Ubse, eids: Mapping[str, tuple[str, str]]) -> bytes:
    """The reply to CLI_DEV_GET; ``eids`` has the primary EIDs of each device's members. Only our own node is known."""
    _refuse_other_slot(query.slot, local)
    found = [urma for name, urma in sorted(state.devices.items()) if not query.names or name in query.names]
    writer = Writer().u32(len(found))
    for urma in found:
        writer.text(urma.name).u32(0 if urma.is_unique else 1).text(str(urma.eid)).texts(urma.members)
        writer.texts(eids[urma.name]).u32(ACTIVE if urma.is_active else INACTIVE)
    return writer.encode()


def limits(body: bytes, local: Node, state: Ubse) -> bytes:
    """The reply to CLI_QOS: the exclusive devices that have a limit, in a message of their own."""
    _refuse_other_slot(Reader(body).u32(), local)
    limited = [urma for _, urma in sorted(state.devices.items()) if urma.is_unique and urma.bandwidth]
    inner = Writer()
    for urma in limited:
        bandwidth = urma.bandwidth or Bandwidth()
        inner.text(urma.name).texts(urma.members).u32(bandwidth.min_mbps).u32(bandwidth.max_mbps)
    outer = Writer().u32(len(limited))
    return (outer.nested(inner) if limited else outer).encode()


def activate(body: bytes, local: Node, state: Ubse) -> tuple[Ubse, bytes]:
    """ACTIVATE: every inactive device of the node, which is named by its slot as text."""
    named = Reader(body).text()
    if named not in ("", str(local.slot_id)):
        raise Rejected(Status.ENGINE_NOT_EXIST, f"slot {named} is not ours")
    for name in state.devices:
        state = state.activate(name)
    return state, Writer().u32(0).encode()


def cluster(super_node: SuperNode) -> bytes:
    """The reply to CLUSTER: every node with its role and the EID of the host's own bonding device."""
    writer = Writer().size(len(super_node.nodes))
    for node, role in _roles(super_node.nodes):
        writer.text(_called(node)).text(role).text(str(node.devices[0].bonding_eid))
    return writer.encode()


def node_info(body: bytes, super_node: SuperNode, local: Node) -> bytes:
    """The reply to CLI_NODE_INFO: one node, ours if none is named."""
    named = Reader(body).text() if body and not Reader(body).is_at_end else str(local.slot_id)
    for node, role in _roles(super_node.nodes):
        if str(node.slot_id) == named:
            return Writer().u32(0).text(_called(node)).text(role).text(str(node.devices[0].bonding_eid)).encode()
    return Writer().u32(NODE_NOT_FOUND).text(named).text("-").text("").encode()


def _roles(nodes: Iterable[Node]) -> list[tuple[Node, str]]:
    """The lowest slot is the master, the next one its stand-by, as after an election of nodes that start together."""
    ordered = sorted(nodes, key=lambda node: node.slot_id)
    return [(node, ("master", "standby")[at] if at < 2 else "agent") for at, node in enumerate(ordered)]


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

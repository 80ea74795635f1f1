"""What ``ubsectl`` asks UBSE, and hears: values to bodies and back, for client and stand-in server. Pure.

``encode`` makes the body, the class method ``decode`` or the function ``decode_…`` reads it. A node is called
``hostname(slot)``; texts are UBSE's own, as ``ubsectl`` prints them.

Operations as of the heads of May 2026 (reference/ub.md section 5).

Source: ubse src/cli/ubse_cli_{node,urma,mem}_cmd_reg.cpp, src/controllers/node/ubse_node_api.cpp.
"""

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from typing import Self, TypeVar

from ubhost.ubse.serial import U32, Reader, Writer
from ubhost.ubse.wire import Malformed

MAX_ROWS = 1 << 20  # far above what fits into a body


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table whose cells are all text, in the order of the fields."""

    def put(self, writer: Writer) -> Writer:
        for cell in astuple(self):
            writer.text(cell)
        return writer

    @classmethod
    def take(cls, reader: Reader) -> Self:
        return cls(*(reader.text() for _ in fields(cls)))


R = TypeVar("R", bound=Row)


@dataclass(frozen=True, slots=True)
class ClusterNode(Row):
    """A node of CLUSTER and CLI_NODE_INFO; ``role`` is master, standby or agent."""

    node: str
    role: str
    bonding_eid: str


@dataclass(frozen=True, slots=True)
class PhysicalLink(Row):
    """A cable of CLI_TOPO, the lower slot first; ``link`` is "-" where a node is not in the cluster."""

    node: str
    socket: str
    port: str
    interface: str
    peer_node: str
    peer_socket: str
    peer_port: str
    peer_interface: str
    link: str


@dataclass(frozen=True, slots=True)
class NodeLoan(Row):
    """What one node has borrowed from another (CLI_NODE_BORROW); ``size_mb`` in MiB."""

    node: str
    lender: str
    size_mb: str


@dataclass(frozen=True, slots=True)
class LoanDetail(Row):
    """One loan (CLI_BORROW_DETAIL); ``kind`` is numa, fd or shm, ``status`` "done" when it is; sizes in bytes."""

    name: str
    kind: str
    node: str
    size: str
    lender: str
    lent: str
    status: str


@dataclass(frozen=True, slots=True)
class MemoryStatus(Row):
    """Whether a node's part of the memory pool works (CLI_CHECK_STATUS): ok or nok."""

    node: str
    status: str


def encode_rows(rows: Iterable[Row]) -> bytes:
    """A table: the number of rows, then their cells."""
    found = list(rows)
    writer = Writer().size(len(found))
    for row in found:
        row.put(writer)
    return writer.encode()


def decode_rows(kind: type[R], body: bytes) -> tuple[R, ...]:
    reader = Reader(body)
    return tuple(kind.take(reader) for _ in range(_count(reader.size())))


def encode_links(links: Iterable[PhysicalLink]) -> bytes:
    """CLI_TOPO: as a table, but each row is a message of its own."""
    found = list(links)
    writer = Writer().size(len(found))
    for link in found:
        writer.nested(link.put(Writer()))
    return writer.encode()


def decode_links(body: bytes) -> tuple[PhysicalLink, ...]:
    reader = Reader(body)
    return tuple(PhysicalLink.take(reader.nested()) for _ in range(_count(reader.size())))


def encode_node_info(code: int, node: ClusterNode) -> bytes:
    return node.put(Writer().u32(code)).encode()


def decode_node_info(body: bytes) -> tuple[int, ClusterNode]:
    reader = Reader(body)
    return reader.u32(), ClusterNode.take(reader)


@dataclass(frozen=True, slots=True)
class DeviceQuery:
    """CLI_DEV_GET: the devices of a node, all or by name. Older heads also sent a type, newer ones do not."""

    slot: int
    names: tuple[str, ...] = ()

    def encode(self) -> bytes:
        writer = Writer().u32(self.slot).u32(len(self.names))
        for name in self.names:
            writer.text(name)
        return writer.encode()

    @classmethod
    def decode(cls, body: bytes) -> "DeviceQuery":
        reader = Reader(body)
        slot, count = reader.u32(), reader.u32()
        if reader.is_next(U32):  # what we took for the count was the type
            count = reader.u32()
        return cls(slot, tuple(reader.text() for _ in range(min(count, len(body)))))


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One device of CLI_DEV_GET, with the kernel devices it is made of and their primary EIDs."""

    name: str
    is_shared: bool
    eid: str
    members: tuple[str, ...]
    member_eids: tuple[str, ...]
    is_active: bool

    def put(self, writer: Writer) -> None:
        writer.text(self.name).u32(self.is_shared).text(self.eid)
        writer.texts(self.members).texts(self.member_eids).u32(not self.is_active)

    @classmethod
    def take(cls, reader: Reader) -> "DeviceRow":
        name, shared, eid = reader.text(), reader.u32(), reader.text()
        return cls(name, shared != 0, eid, reader.texts(), reader.texts(), reader.u32() == 0)


def encode_devices(devices: Iterable[DeviceRow]) -> bytes:
    found = list(devices)
    writer = Writer().u32(len(found))
    for device in found:
        device.put(writer)
    return writer.encode()


def decode_devices(body: bytes) -> tuple[DeviceRow, ...]:
    reader = Reader(body)
    return tuple(DeviceRow.take(reader) for _ in range(_count(reader.u32())))


@dataclass(frozen=True, slots=True)
class LimitRow:
    """One limited device of CLI_QOS, in Mb/s."""

    name: str
    members: tuple[str, ...]
    min_mbps: int
    max_mbps: int


def encode_limit_rows(limits: Iterable[LimitRow]) -> bytes:
    """The rows are one message inside the message, which is missing if there are none."""
    found, inner = list(limits), Writer()
    for row in found:
        inner.text(row.name).texts(row.members).u32(row.min_mbps).u32(row.max_mbps)
    outer = Writer().u32(len(found))
    return (outer.nested(inner) if found else outer).encode()


def decode_limit_rows(body: bytes) -> tuple[LimitRow, ...]:
    reader = Reader(body)
    count = _count(reader.u32())
    if not count:
        return ()
    inner = reader.nested()
    return tuple(LimitRow(inner.text(), inner.texts(), inner.u32(), inner.u32()) for _ in range(count))


def encode_word(value: int) -> bytes:
    """A slot, or a result."""
    return Writer().u32(value).encode()


def decode_word(body: bytes) -> int:
    return Reader(body).u32()


def encode_text(value: str) -> bytes:
    """A slot as text."""
    return Writer().text(value).encode()


def decode_text(body: bytes) -> str:
    """Return the text of a body, "" if it has none."""
    reader = Reader(body) if body else None
    return reader.text() if reader is not None and not reader.is_at_end else ""


NOTHING = Writer().encode()
"""The request of an operation that asks for everything."""


def _count(value: int) -> int:
    if value > MAX_ROWS:
        raise Malformed(f"UBSE announced {value} rows")
    return value

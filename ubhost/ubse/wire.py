"""The framing of UBSE's protocol: headers, operation numbers, and the primitives of bodies. Pure.

One connection carries one call: a request header and its body, then a reply header and its body. Headers are in the
host's byte order. In bodies u32 is big-endian; u64 is host order in the URMA module and big-endian in MEM and NODE
(``src/sdk/libubse_helper.c`` has two sets of helpers). Replies carry text as u32 length + bytes; requests carry a
name as NUL-terminated bytes (URMA), or in a field of 48 bytes (MEM).

The numbers of modules and operations differ between UBSE releases; these are those of openEuler 24.03 SP3, as
reference/ub.md has them.

Source: reference/ub.md section 5 (ubse src/framework/ipc/ubse_ipc_message.h, src/sdk/libubse_helper.c).
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from ubhost.errors import HostFault, InvalidRequest

T = TypeVar("T")

REQUEST = struct.Struct("=HHI")  # module, operation, body length
REPLY = struct.Struct("=II")  # status, body length
MAX_BODY = 40 << 10  # bytes, UBSE_MESSAGE_SIZE

_U32, _HOST_U32 = struct.Struct(">I"), struct.Struct("=I")
_BIG_U64, _HOST_U64 = struct.Struct(">Q"), struct.Struct("=Q")


class Malformed(HostFault):
    """The other side sent bytes that are not UBSE's protocol."""


class Module(IntEnum):
    MEM = 1
    NODE = 2
    URMA = 6


NEWER_NODE_MODULE = 3  # of UBSE releases after the one we know, where 2 is the election's


class UrmaOp(IntEnum):
    QOS_SET = 1
    QOS_GET = 2
    QOS_RESET = 3
    CLI_QOS = 4
    DEV_GET = 5
    DEV_ALLOC = 6
    DEV_FREE = 7
    CLI_DEV_GET = 8
    ACTIVATE = 9


class NodeOp(IntEnum):
    LIST = 1
    CPU_TOPO = 2
    NUMA_MEM = 3
    CLI_TOPO = 4
    CLUSTER = 5
    NODE_GET = 6
    CLI_NODE_INFO = 7


class MemOp(IntEnum):
    FD_CREATE = 1
    FD_WITH_LEND = 2
    FD_GET = 3
    FD_LIST = 4
    FD_DELETE = 5
    NUMA_CREATE = 6
    NUMA_WITH_LEND = 7
    NUMA_GET = 8
    NUMA_LIST = 9
    NUMA_DELETE = 0x10
    CLI_NODE_BORROW = 0x11
    CLI_BORROW_DETAIL = 0x12
    CLI_CHECK_STATUS = 0x13


@dataclass(frozen=True, slots=True)
class Request:
    """One call. ``op`` is a number of the module's own enumeration."""

    module: int
    op: int
    body: bytes = b""

    def encode(self) -> bytes:
        if len(self.body) > MAX_BODY:
            raise InvalidRequest(f"UBSE request of {len(self.body)} bytes, at most {MAX_BODY} are allowed")
        return REQUEST.pack(self.module, self.op, len(self.body)) + self.body


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes = b""

    def encode(self) -> bytes:
        return REPLY.pack(self.status, len(self.body)) + self.body


def request_header(data: bytes) -> tuple[int, int, int]:
    """Return (module, operation, body length) of the 8 bytes that open a request.

    Raises:
        Malformed: the body would be longer than the protocol allows.
    """
    module, op, length = REQUEST.unpack(data)
    _refuse_oversize(length)
    return module, op, length


def reply_header(data: bytes) -> tuple[int, int]:
    """Return (status, body length) of the 8 bytes that open a reply.

    Raises:
        Malformed: the body would be longer than the protocol allows.
    """
    status, length = REPLY.unpack(data)
    _refuse_oversize(length)
    return status, length


def _refuse_oversize(length: int) -> None:
    if length > MAX_BODY:
        raise Malformed(f"UBSE message announces a body of {length} bytes, at most {MAX_BODY} are allowed")


def u32(value: int) -> bytes:
    """Raises InvalidRequest when ``value`` does not fit; so do the others of its kind."""
    return _packed(_U32, value)


def u64(value: int) -> bytes:
    """As MEM and NODE bodies have it."""
    return _packed(_BIG_U64, value)


def host_u64(value: int) -> bytes:
    """As URMA bodies have it."""
    return _packed(_HOST_U64, value)


def host_u32(value: int) -> bytes:
    return _packed(_HOST_U32, value)


def text(value: str) -> bytes:
    """Text of a reply: its length, then its bytes."""
    packed = value.encode()
    return u32(len(packed)) + packed


def name(value: str, limit: int) -> bytes:
    """A name that ends with NUL; ``limit`` counts the NUL."""
    packed = value.encode()
    if not packed or b"\0" in packed or len(packed) >= limit:
        raise InvalidRequest(f"UBSE name {value!r} must have 1 to {limit - 1} bytes and no NUL")
    return packed + b"\0"


def field(value: str, size: int) -> bytes:
    """A name in a field of ``size`` bytes, filled up with NUL."""
    return name(value, size).ljust(size, b"\0")


def listed(items: Iterable[bytes]) -> bytes:
    """A list: how many, then each."""
    found = list(items)
    return u32(len(found)) + b"".join(found)


def _packed(number: struct.Struct, value: int) -> bytes:
    try:
        return number.pack(value)
    except struct.error:
        raise InvalidRequest(f"{value} does not fit into {number.size * 8} bits") from None


class Body:
    """Reads a body from front to back, never beyond its end. What it returns is untrusted but well-formed text.

    Every method raises ``Malformed`` when the bytes do not fit.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_BIG_U64.unpack(self.take(8))[0])

    def host_u32(self) -> int:
        return int(_HOST_U32.unpack(self.take(4))[0])

    def host_u64(self) -> int:
        return int(_HOST_U64.unpack(self.take(8))[0])

    def text(self, limit: int) -> str:
        """``limit`` counts the NUL that the C side adds."""
        length = self.u32()
        if length >= limit:
            raise Malformed(f"UBSE sent a text of {length} bytes, at most {limit - 1} are allowed")
        return _printable(self.take(length))

    def name(self, limit: int) -> str:
        end = self._data.find(b"\0", self._at, self._at + limit)
        if end < 0:
            raise Malformed(f"UBSE name without an end in {limit} bytes")
        value = _printable(self.take(end - self._at))
        self.take(1)
        return value

    def field(self, size: int) -> str:
        return _printable(self.take(size).partition(b"\0")[0])

    def count(self, item_size: int) -> int:
        """A number of items that each take at least ``item_size`` bytes; refused if they cannot all be here."""
        items = self.u32()
        if items * item_size > len(self._data) - self._at:
            raise Malformed(f"UBSE announced {items} items in {len(self._data) - self._at} bytes")
        return items

    def listed(self, read: Callable[["Body"], T], item_size: int) -> tuple[T, ...]:
        """A list: how many, then each."""
        return tuple(read(self) for _ in range(self.count(item_size)))

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise Malformed(f"UBSE body ends {size - (len(self._data) - self._at)} bytes too early")
        self._at += size
        return self._data[self._at - size : self._at]

    def end(self) -> None:
        """Refuse what is left over."""
        if self._at != len(self._data):
            raise Malformed(f"UBSE body has {len(self._data) - self._at} bytes too many")


def whole(data: bytes, read: Callable[[Body], T]) -> T:
    """Return what ``read`` makes of a body, all of it.

    Raises:
        Malformed: the bytes do not fit, or some are left over.
    """
    body = Body(data)
    value = read(body)
    body.end()
    return value


def _printable(raw: bytes) -> str:
    try:
        value = raw.decode()
    except UnicodeDecodeError:
        raise Malformed(f"UBSE text {raw!r} is not UTF-8") from None
    if not value.isprintable():
        raise Malformed(f"UBSE text {value!r} has control characters")
    return value

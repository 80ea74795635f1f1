"""What UBSE's MEM operations say: borrowed memory as device nodes (FD) or as a NUMA node. Pure, both sides.

Source: reference/ub.md section 6.3 (ubse src/sdk/include/ubs_engine_mem.h, src/sdk/ubs_engine_mem.c, libubse_helper.c).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from ubhost.ubse import wire
from ubhost.ubse.wire import Body, Malformed

MEM_NAME = 48  # bytes with the NUL, UBS_MEM_MAX_NAME_LENGTH
MAX_MEMIDS = 2048
MIN_SIZE, MAX_SIZE = 128 << 20, 256 << 30  # bytes


class Distance(IntEnum):
    """How far away the lender may be; today's UBSE grants L0 only."""

    L0 = 0  # directly linked
    L1 = 1  # over one hop
    L2 = 2


@dataclass(frozen=True, slots=True)
class Owner:
    """Who may open the device nodes; ``pid`` is not yet used by UBSE."""

    uid: int = 0
    gid: int = 0
    pid: int = 0

    def encode(self) -> bytes:
        return wire.u32(self.uid) + wire.u32(self.gid) + wire.u32(self.pid)

    @classmethod
    def read(cls, body: Body) -> "Owner":
        return cls(body.u32(), body.u32(), body.u32())


@dataclass(frozen=True, slots=True)
class Lender:
    """The very node, socket and NUMA node that shall lend ``size`` bytes."""

    slot_id: int
    socket_id: int
    numa_id: int
    size: int

    def encode(self) -> bytes:
        return wire.u32(self.slot_id) + wire.u32(self.socket_id) + wire.u64(self.numa_id) + wire.u64(self.size)

    @classmethod
    def read(cls, body: Body) -> "Lender":
        return cls(body.u32(), body.u32(), body.u64(), body.u64())


@dataclass(frozen=True, slots=True)
class FdCreate:
    """Borrow ``size`` bytes as device nodes with owner and ``mode`` (0 leaves UBSE's own)."""

    name: str
    size: int
    owner: Owner = Owner()
    mode: int = 0
    distance: Distance = Distance.L0

    def encode(self) -> bytes:
        head = wire.field(self.name, MEM_NAME) + wire.u64(self.size) + self.owner.encode()
        return head + wire.u32(self.mode) + wire.u32(self.distance)

    @classmethod
    def decode(cls, data: bytes) -> "FdCreate":
        return wire.whole(
            data,
            lambda b: cls(b.field(MEM_NAME), b.u64(), Owner.read(b), b.u32(), _distance(b)),
        )


@dataclass(frozen=True, slots=True)
class FdWithLender:
    name: str
    lender: Lender
    owner: Owner = Owner()
    mode: int = 0

    def encode(self) -> bytes:
        return wire.field(self.name, MEM_NAME) + self.owner.encode() + wire.u32(self.mode) + self.lender.encode()

    @classmethod
    def decode(cls, data: bytes) -> "FdWithLender":
        def read(body: Body) -> FdWithLender:
            name, owner, mode = body.field(MEM_NAME), Owner.read(body), body.u32()
            return cls(name, Lender.read(body), owner, mode)

        return wire.whole(data, read)


@dataclass(frozen=True, slots=True)
class FdMemory:
    """Borrowed memory: the nodes ``/dev/obmm_shmdev<memid>``, each of ``unit_size`` bytes, to be mapped in order."""

    name: str
    memids: tuple[int, ...]
    size: int
    unit_size: int

    def encode(self) -> bytes:
        ids = wire.listed(map(wire.u64, self.memids))
        return wire.field(self.name, MEM_NAME) + ids + wire.u64(self.size) + wire.u64(self.unit_size)

    @classmethod
    def read(cls, body: Body) -> "FdMemory":
        name, count = body.field(MEM_NAME), body.count(item_size=8)
        if count > MAX_MEMIDS:
            raise Malformed(f"UBSE sent {count} blocks for {name}, at most {MAX_MEMIDS} are allowed")
        return cls(name, tuple(body.u64() for _ in range(count)), body.u64(), body.u64())

    @classmethod
    def decode(cls, data: bytes) -> "FdMemory":
        return wire.whole(data, cls.read)


@dataclass(frozen=True, slots=True)
class NumaCreate:
    """Borrow ``size`` bytes as a NUMA node without CPUs."""

    name: str
    size: int
    distance: Distance = Distance.L0

    def encode(self) -> bytes:
        return wire.field(self.name, MEM_NAME) + wire.u64(self.size) + wire.u32(self.distance)

    @classmethod
    def decode(cls, data: bytes) -> "NumaCreate":
        return wire.whole(data, lambda b: cls(b.field(MEM_NAME), b.u64(), _distance(b)))


@dataclass(frozen=True, slots=True)
class NumaWithLender:
    name: str
    lender: Lender

    def encode(self) -> bytes:
        return wire.field(self.name, MEM_NAME) + self.lender.encode()

    @classmethod
    def decode(cls, data: bytes) -> "NumaWithLender":
        return wire.whole(data, lambda b: cls(b.field(MEM_NAME), Lender.read(b)))


@dataclass(frozen=True, slots=True)
class NumaRegion:
    """Borrowed memory that this host sees as NUMA node ``numa``."""

    name: str
    numa: int

    def encode(self) -> bytes:
        return wire.field(self.name, MEM_NAME) + wire.u64(self.numa & (1 << 64) - 1)

    @classmethod
    def read(cls, body: Body) -> "NumaRegion":
        name, numa = body.field(MEM_NAME), body.u64()
        return cls(name, numa - (1 << 64) if numa >> 63 else numa)  # int64: negative means none

    @classmethod
    def decode(cls, data: bytes) -> "NumaRegion":
        return wire.whole(data, cls.read)


def encode_mem_name(name: str) -> bytes:
    """The request of FD_GET, FD_DELETE, NUMA_GET and NUMA_DELETE."""
    return wire.field(name, MEM_NAME)


def decode_mem_name(data: bytes) -> str:
    return wire.whole(data, lambda b: b.field(MEM_NAME))


def encode_list(items: Iterable[FdMemory] | Iterable[NumaRegion]) -> bytes:
    """The reply to FD_LIST and NUMA_LIST."""
    return wire.listed(item.encode() for item in items)


def decode_fd_list(data: bytes) -> tuple[FdMemory, ...]:
    return wire.whole(data, lambda b: b.listed(FdMemory.read, item_size=MEM_NAME + 20))


def decode_numa_list(data: bytes) -> tuple[NumaRegion, ...]:
    return wire.whole(data, lambda b: b.listed(NumaRegion.read, item_size=MEM_NAME + 8))


def _distance(body: Body) -> Distance:
    value = body.u32()
    if value not in (0, 1, 2):
        raise Malformed(f"UBSE knows no distance {value}")
    return Distance(value)

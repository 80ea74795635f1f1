"""Memory that several nodes share: what is asked of UBSE, and what it answers. Pure, both sides.

The calls are those of the newer SDK: create exports memory, each attach imports it on the calling node, and nothing is
deleted while a node has it attached. Their form on the wire is not public, so this one is ours, below a module number
that no UBSE has: the stand-in answers it, a real one refuses, and then shared memory is not to be had there.

Source: reference/ub.md sections 6.1 to 6.3 (ubs_mem_shm_create, _attach, _detach, _get, _list, _delete).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from ubhost.ubse import wire
from ubhost.ubse.memory import MEM_NAME
from ubhost.ubse.wire import Body

MODULE = 0x7F00
BLOCK = 128 << 20  # bytes; sizes are rounded up to it
_INFO = 33  # bytes with the NUL: usr_info
_NODE = 64
_CACHEABLE = 4  # UBS_MEM_FLAG_CACHEABLE


class ShmOp(IntEnum):
    CREATE = 1
    ATTACH = 2
    DETACH = 3
    GET = 4
    LIST = 5
    DELETE = 6


@dataclass(frozen=True, slots=True)
class ShmCreate:
    """Export ``size`` bytes; ``info`` is kept for the caller. Cacheable memory is owned page by page by its users."""

    name: str
    size: int
    is_cacheable: bool = False
    info: str = ""

    def encode(self) -> bytes:
        flags = _CACHEABLE if self.is_cacheable else 0
        info = wire.field(self.info, _INFO) if self.info else bytes(_INFO)
        return wire.field(self.name, MEM_NAME) + wire.u64(self.size) + wire.u32(flags) + info

    @classmethod
    def read(cls, body: Body) -> "ShmCreate":
        name, size, flags, info = body.field(MEM_NAME), body.u64(), body.u32(), body.field(_INFO)
        return cls(name, size, bool(flags & _CACHEABLE), info)

    @classmethod
    def decode(cls, data: bytes) -> "ShmCreate":
        return wire.whole(data, cls.read)


@dataclass(frozen=True, slots=True)
class Shm:
    """Shared memory as the asking node sees it.

    ``memids`` are its device nodes here, ``/dev/obmm_shmdev<memid>`` of ``size / len(memids)`` bytes each, to be mapped
    in order; none if it is not attached here. ``nodes`` are the hosts that have it attached, the asking one too.
    """

    name: str
    size: int
    is_cacheable: bool
    info: str
    memids: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()

    def encode(self) -> bytes:
        head = ShmCreate(self.name, self.size, self.is_cacheable, self.info).encode()
        nodes = wire.listed(wire.field(node, _NODE) for node in self.nodes)
        return head + wire.listed(map(wire.u64, self.memids)) + nodes

    @classmethod
    def read(cls, body: Body) -> "Shm":
        made = ShmCreate.read(body)
        memids = body.listed(Body.u64, item_size=8)
        nodes = body.listed(lambda b: b.field(_NODE), item_size=_NODE)
        return cls(made.name, made.size, made.is_cacheable, made.info, memids, nodes)

    @classmethod
    def decode(cls, data: bytes) -> "Shm":
        return wire.whole(data, cls.read)


def encode_list(found: Iterable[Shm]) -> bytes:
    return wire.listed(each.encode() for each in found)


def decode_list(data: bytes) -> tuple[Shm, ...]:
    return wire.whole(data, lambda b: b.listed(Shm.read, item_size=MEM_NAME))

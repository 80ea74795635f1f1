"""One host as a whole."""

from dataclasses import dataclass, field

from ubhost.model.bus import UbBus, UbEntity
from ubhost.model.memory import MemoryPool, NumaNode, SharedMemory
from ubhost.model.urma import UrmaDevice


@dataclass(frozen=True, slots=True)
class Position:
    """Where the host sits in its super-node, as UBSE tells it."""

    super_node_id: int | None = None
    slot_id: int | None = None
    host_name: str | None = None


@dataclass(frozen=True, slots=True)
class UbHost:
    """Everything found on one host. ``faults`` names what is there and makes no sense, outside of single devices."""

    is_ub_platform: bool  # firmware has a UBRT table
    devices: tuple[UrmaDevice, ...] = ()
    entities: tuple[UbEntity, ...] = ()
    numa: tuple[NumaNode, ...] = ()
    shared_memory: tuple[SharedMemory, ...] = ()
    position: Position = Position()
    bus: UbBus = field(default_factory=UbBus)
    memory_pools: tuple[MemoryPool, ...] = ()
    faults: tuple[str, ...] = ()

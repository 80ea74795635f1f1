"""NUMA nodes, and memory that is shared or set aside for lending. Source: reference/ub.md section 6.1."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HugePages:
    """Hugepages of one size on one NUMA node; sizes in KiB, counts in pages."""

    size_kib: int
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class NumaNode:
    """``distances`` maps the id of each node to the kernel's distance; to itself it is 10."""

    id: int
    cpus: tuple[int, ...] = ()
    memory_total: int | None = None  # bytes
    memory_free: int | None = None  # bytes
    distances: Mapping[int, int] = field(default_factory=dict)
    hugepages: tuple[HugePages, ...] = ()

    @property
    def is_cpuless(self) -> bool:
        """Memory without CPUs, such as memory borrowed from another server of the super-node."""
        return not self.cpus


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """An OBMM region, ``obmm_shmdev<id>``. Source: ub.md 6.1.

    ``details`` holds what else ``export_info`` or ``import_info`` say, in the kernel's own words.
    """

    id: int
    type: str | None = None  # "export" or "import"
    size: int | None = None  # bytes
    allow_mmap: bool | None = None
    numa: int | None = None  # imported as this NUMA node
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def node(self) -> str:
        """The device node, below /dev."""
        return f"obmm_shmdev{self.id}"


@dataclass(frozen=True, slots=True)
class MemoryPool:
    """``/sys/kernel/obmm_mempool/obmm-<numa>``: memory set aside for lending. Sizes in bytes."""

    numa: int
    total: int | None = None
    used: int | None = None
    available_cleared: int | None = None
    available_uncleared: int | None = None

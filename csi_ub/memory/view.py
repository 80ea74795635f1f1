"""Shared memory as one node sees it: the device nodes that are mapped, and the terms on which. Pure."""

from dataclasses import dataclass
from typing import Any

from csi_ub.model import Consistency


@dataclass(frozen=True, slots=True)
class Device:
    """Device node ``/dev/<node>`` of ``size`` bytes. ``memid`` is UBSE's; mappings are multiples of ``align`` bytes."""

    node: str
    size: int
    memid: int | None = None
    align: int | None = None

    def told(self) -> dict[str, Any]:
        facts = {"path": self.node, "memid": self.memid, "size": self.size, "align": self.align}
        return {key: value for key, value in facts.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Terms:
    """How programs keep what they see alike: the flags of open(2), who owns what, and the rule in words."""

    open_flags: tuple[str, ...]
    ownership: str
    rule: str


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory that its owner calls ``name``: ``devices`` one behind the other."""

    name: str
    consistency: Consistency
    size: int
    devices: tuple[Device, ...]
    terms: Terms


def manifest(volume: str, memory: Memory) -> dict[str, Any]:
    """Return how the memory is to be used: map the devices in their order, one behind the other."""
    return {
        "version": 1,
        "volume": volume,
        "consistency": memory.consistency.value,
        "size": memory.size,
        "memids": [each.memid for each in memory.devices if each.memid is not None],
        "devices": [each.told() for each in memory.devices],
        "mode": "rw",
        "open_flags": list(memory.terms.open_flags),
        "mmap_flags": ["MAP_SHARED"],
        "ownership": memory.terms.ownership,
        "rule": memory.terms.rule,
    }

"""What a scheduler has to know of a node and its super-node: devices, bandwidth, memory. Pure.

Figures are what the parts say of themselves, never measured.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ubhost.discovery import Discovery
from ubhost.ubse.bodies import NumaMemory


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices that pods can be given; ``by_numa`` counts the healthy ones, "unknown" where firmware is silent."""

    total: int = 0
    healthy: int = 0
    by_numa: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plane:
    """``nominal_mbps`` is the speed of a port times the ports that are up."""

    plane: int
    ports: int
    ports_up: int
    nominal_mbps: int | None = None


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Memory of one node of the super-node, in bytes. ``lendable`` is what UBSE's ratio leaves of the free part."""

    slot_id: int
    host_name: str
    hops: int | None
    total: int
    free: int
    lendable: int
    huge_pages_2m_free: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """``borrowed`` and ``lent`` are of this node, in bytes."""

    devices: Devices
    planes: tuple[Plane, ...]
    memory: tuple[NodeMemory, ...]
    borrowed: int
    lent: int
    pool_total: int
    pool_used: int


def capacity(found: Discovery) -> Capacity:
    healthy = [device for device in found.devices if device.is_healthy]
    by_numa = Counter("unknown" if device.numa is None else str(device.numa) for device in healthy)
    pools = found.host.memory_pools
    return Capacity(
        devices=Devices(len(found.devices), len(healthy), dict(sorted(by_numa.items()))),
        planes=tuple(
            Plane(die.plane, len(die.ports), len(die.links), die.bandwidth_mbps) for die in found.topology.dies
        ),
        memory=tuple(_node_memory(found)),
        borrowed=sum(node.memory_total or 0 for node in found.host.numa if node.is_cpuless),
        lent=sum(region.size or 0 for region in found.host.shared_memory if region.type == "export"),
        pool_total=sum(pool.total or 0 for pool in pools),
        pool_used=sum(pool.used or 0 for pool in pools),
    )


def _node_memory(found: Discovery) -> Iterable[NodeMemory]:
    for node in found.topology.nodes:
        own = [item for item in found.memory if item.slot_id == node.slot_id and not item.is_remote]
        yield NodeMemory(
            slot_id=node.slot_id,
            host_name=node.host_name,
            hops=node.hops,
            total=sum(item.total for item in own),
            free=sum(item.free for item in own),
            lendable=sum(map(_lendable, own)),
            huge_pages_2m_free=sum(item.free_huge_pages for item in own),
        )


def _lendable(item: NumaMemory) -> int:
    """The ratio bounds what may be lent of the whole; only what is free can be."""
    return min(item.free, item.total * min(item.lend_ratio, 100) // 100)

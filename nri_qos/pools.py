"""Which CPUs and memory nodes are whose: the node as a plan sees it. Pure.

Source: design section 8; reference/nri.md sections 2.3, 4.3 and 4.5.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from nri_qos import cpulist, placement
from nri_qos.config import Config, ids
from nri_qos.memory import NOBODY, Over
from nri_qos.model import Machine, Placement
from nri_qos.placement import Room

Key = tuple[str, str]
"""Pod key and container name: what a container keeps over a restart."""

WHOLE = ""
"""In place of a container's name: what is reserved for a pod as a whole."""

UNKNOWN = 1 << 62  # bytes, where the host does not tell: memory is no criterion then


@dataclass(frozen=True, slots=True)
class Occupied:
    """What has been given away already."""

    placements: Mapping[Key, Placement] = field(default_factory=dict)
    stopped: frozenset[Key] = frozenset()  # of them, those whose container does not run: its pod may use them
    foreign: frozenset[int] = frozenset()  # CPUs that kubelet or another plugin pinned for one container
    offline: frozenset[int] | None = None  # where the loop holds offline containers; None: it has not decided yet
    homebound: Over = NOBODY  # who is kept off borrowed memory
    overdrawn: Over = NOBODY  # who has so much of it that they get no further container


@dataclass(frozen=True)
class Node:
    """This machine, how it is configured, and what is taken. No set of CPUs or nodes is ever empty.

    It never changes, so each set is worked out once.
    """

    machine: Machine
    config: Config
    occupied: Occupied = Occupied()

    @cached_property
    def pool(self) -> frozenset[int]:
        """The CPUs that are handed out; where CPUs have gone offline since ``misfit`` was asked, there may be none."""
        usable = _usable(self.machine, self.config)
        return usable - (ids(self.config.reserved) or frozenset()) or usable or self.machine.online

    @cached_property
    def exclusive(self) -> frozenset[int]:
        """CPUs that are one container's own."""
        return self.occupied.foreign.union(*(place.exclusive for place in self.occupied.placements.values()))

    @cached_property
    def shared(self) -> frozenset[int]:
        """CPUs of the online containers that have none of their own."""
        return self.pool - self.exclusive or self.pool

    @cached_property
    def offline_room(self) -> frozenset[int]:
        """CPUs that offline work may use at most: none on a core where a CPU is somebody's own."""
        return self.shared - self.machine.cores(self.exclusive) or self.shared

    @cached_property
    def remote(self) -> frozenset[int]:
        """NUMA nodes of borrowed memory."""
        listed = ids(self.config.remote_nodes)
        if listed is not None:
            return listed
        with_cpus = [node for node in self.machine.nodes if not node.is_cpuless]
        return frozenset(
            node.id
            for node in self.machine.nodes
            if node.is_cpuless
            and min((placement.distance(other, node) for other in with_cpus), default=0) >= self.config.remote_distance
        )

    @cached_property
    def with_memory(self) -> frozenset[int]:
        """Nodes that have memory: a cpuset with only others would silently mean the parent's."""
        return frozenset(node.id for node in self.machine.nodes if node.memory_total != 0)

    @cached_property
    def local(self) -> frozenset[int]:
        """Nodes with memory of this server."""
        return self.with_memory - self.remote or self.with_memory

    @cached_property
    def offline_memory(self) -> frozenset[int]:
        """Nodes whose memory offline work may use."""
        return self.local | (self.remote & self.with_memory if self.config.offline_remote else frozenset())

    @cached_property
    def _reserved(self) -> Mapping[Key, Placement]:
        """What is reserved, nothing of it twice: a pod's containers take theirs from what the pod has as a whole."""
        placements = self.occupied.placements
        left = {key[0]: place.cpus for key, place in placements.items() if key[1] == WHOLE}
        if not left:
            return placements
        for (pod, _), place in placements.items():
            if pod in left:
                left[pod] -= 1000 * len(place.exclusive)
        reserved: dict[Key, Placement] = {}
        for key, place in placements.items():
            if key[1] == WHOLE:
                place = replace(place, cpus=max(left[key[0]], 0))
            elif key[0] in left:
                place = replace(place, cpus=0, memory=0)
            reserved[key] = place
        return reserved

    def cpus_of(self, nodes: frozenset[int]) -> frozenset[int]:
        return frozenset(cpu for node in self.machine.nodes if node.id in nodes for cpu in node.cpus)

    def room(self, free: frozenset[int], without: Collection[Key], devices: frozenset[int] = frozenset()) -> Room:
        """Return what is left on each node for a container whose CPUs would come from ``free``.

        What containers ``without`` hold does not count; ``devices`` are the nodes of its devices.
        """
        memory = dict.fromkeys(self.local, 0)
        cpus: dict[int, int] = {}
        load: dict[int, tuple[int, int]] = {}
        for place in (place for key, place in self._reserved.items() if key not in without):
            nodes = place.nodes or frozenset()
            holding = nodes & self.with_memory or nodes
            for node in holding:
                memory[node] = memory.get(node, 0) + place.memory // len(holding)
            for node in nodes:
                cpus[node] = cpus.get(node, 0) + (0 if place.exclusive else place.cpus // len(nodes))
                requests, containers = load.get(node, (0, 0))
                load[node] = requests + place.cpus // len(nodes), containers + 1
        return Room(
            cpus={n.id: len(free.intersection(n.cpus)) * 1000 - cpus.get(n.id, 0) for n in self.machine.nodes},
            memory={
                n.id: min(
                    UNKNOWN if n.memory_total is None else n.memory_total - memory[n.id],
                    UNKNOWN if n.memory_free is None else n.memory_free,
                )
                for n in self.machine.nodes
                if n.id in self.local
            },
            load=load,
            wanted=devices,
        )


def misfit(machine: Machine, config: Config) -> str | None:
    """Say why a configuration cannot be meant for this machine, ``None`` if it can: it leaves nothing to hand out."""
    named = [f"{key} {value}" for key in ("available", "reserved") if (value := getattr(config, key)) is not None]
    if named and not _usable(machine, config) - (ids(config.reserved) or frozenset()):
        online = cpulist.render(machine.online)
        return f"{' and '.join(named)}: none of the CPUs of this node, {online}, is left for containers"
    with_memory = frozenset(node.id for node in machine.nodes if node.memory_total != 0)
    if with_memory and with_memory <= (ids(config.remote_nodes) or frozenset()):
        nodes = cpulist.render(with_memory)
        return f"remote_nodes {config.remote_nodes}: none of the nodes with memory, {nodes}, is left for this server"
    return None


def _usable(machine: Machine, config: Config) -> frozenset[int]:
    available = ids(config.available)
    return machine.online - machine.isolated if available is None else machine.online & available

"""Chooses NUMA nodes and CPUs. Pure: same input, same output.

The search is bounded: up to ``EXHAUSTIVE`` candidate nodes every set is weighed, smallest first; beyond, sets are
grown from each node to its nearest neighbours. (kubelet's own search of all 2^n sets stalls for ever at 34 nodes.)

Source: reference/nri.md section 4.3.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from nri_qos.model import Machine
from ubhost.model import NumaNode

EXHAUSTIVE = 8
FAR = 255  # distance where the kernel tells none

Nodes = tuple[NumaNode, ...]
"""By id."""


@dataclass(frozen=True, slots=True)
class Room:
    """What is left on each NUMA node that may be chosen."""

    cpus: Mapping[int, int]  # node -> CPUs that can be had
    memory: Mapping[int, int]  # node -> bytes that can be had
    load: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # node -> (CPU requests, containers) so far
    wanted: frozenset[int] = frozenset()  # nodes of the container's devices


def choose_nodes(machine: Machine, room: Room, cpus: int, memory: int, largest: int | None = None) -> frozenset[int]:
    """Return the best set of nodes with ``cpus`` CPUs and ``memory`` bytes left, or an empty set.

    Best is: fewest nodes; those of the devices; near one another; least loaded; with the tightest fit; lowest ids.
    ``largest`` limits the number of nodes.
    """
    nodes = [node for node in machine.nodes if room.cpus.get(node.id, 0) > 0]
    largest = min(largest or len(nodes), len(nodes))
    grow = _every_set if len(nodes) <= EXHAUSTIVE else _neighbourhoods
    fits = {tuple(node.id for node in chosen): chosen for chosen in grow(nodes, room, cpus, memory, largest)}
    fewest = min(map(len, fits), default=0)
    best = min((fits[ids] for ids in fits if len(ids) == fewest), key=lambda chosen: _cost(chosen, room), default=())
    return frozenset(node.id for node in best)


def _every_set(nodes: list[NumaNode], room: Room, cpus: int, memory: int, largest: int) -> Iterable[Nodes]:
    """Return all sets that have room, of the smallest size of which there are any."""
    for size in range(1, largest + 1):
        sets = combinations(nodes, size)
        fits = [chosen for chosen in sets if has_room([node.id for node in chosen], room, cpus, memory)]
        if fits:
            return fits
    return ()


def _neighbourhoods(nodes: list[NumaNode], room: Room, cpus: int, memory: int, largest: int) -> Iterator[Nodes]:
    """Yield for each node the smallest set of it and those nearest to it that has room."""
    for node in nodes:
        need_cpus, need_memory = cpus, memory
        near = sorted(nodes, key=lambda other: (distance(node, other), other.id))[:largest]
        for size, member in enumerate(near, 1):
            need_cpus -= room.cpus[member.id]
            need_memory -= room.memory.get(member.id, 0)
            if need_cpus <= 0 and need_memory <= 0:
                yield tuple(sorted(near[:size], key=lambda chosen: chosen.id))
                break


def has_room(nodes: Collection[int], room: Room, cpus: int, memory: int) -> bool:
    return (
        sum(room.cpus.get(node, 0) for node in nodes) >= cpus
        and sum(room.memory.get(node, 0) for node in nodes) >= memory
    )


def _cost(chosen: Nodes, room: Room) -> tuple[object, ...]:
    pairs = [max(distance(a, b), distance(b, a)) for a, b in combinations(chosen, 2)]
    ids = [node.id for node in chosen]
    requests = [room.load.get(node, (0, 0)) for node in ids]
    return (
        len(room.wanted.difference(ids)),
        max(pairs, default=0),
        sum(pairs),
        sum(r for r, _ in requests),
        sum(n for _, n in requests),
        sum(room.cpus[node] for node in ids),
        ids,
    )


def distance(a: NumaNode, b: NumaNode) -> int:
    """Return the kernel's distance; 10 is local."""
    return a.distances.get(b.id, 10 if a.id == b.id else FAR)


def take_cpus(
    machine: Machine, free: frozenset[int], count: int, preferred: frozenset[int] = frozenset()
) -> frozenset[int]:
    """Return ``count`` CPUs of ``free``, or an empty set if there are not so many.

    ``preferred`` ones first (what the container had before). Then whole cores, packed into as few caches and nodes as
    possible; the odd CPU of a request goes to a core that is already broken.
    """
    if len(free) < count:
        return frozenset()
    taken = sorted(preferred & free)[:count]
    left = free.difference(taken)
    for core in _whole_cores(machine, left, count - len(taken)):
        if len(taken) + len(core) <= count:
            taken.extend(sorted(core))
    left = free.difference(taken)
    taken.extend(sorted(left, key=lambda cpu: (len(machine.core(cpu) & left), cpu))[: count - len(taken)])
    return frozenset(taken)


def _whole_cores(machine: Machine, free: frozenset[int], count: int) -> list[frozenset[int]]:
    """Return the cores that are wholly free, those of the node and cache that fit ``count`` most tightly first."""
    threads = {cpu: machine.core(cpu) & machine.online for cpu in free}
    cores = sorted({core for core in threads.values() if core and core <= free}, key=min)
    home = {cpu: node.id for node in machine.nodes for cpu in node.cpus}

    def group(core: frozenset[int]) -> tuple[int, int]:
        return home.get(min(core), -1), machine.caches.get(min(core), -1)

    sizes: dict[tuple[int, int] | int, int] = {}
    for core in cores:
        node, cache = group(core)
        sizes[node] = sizes.get(node, 0) + len(core)
        sizes[node, cache] = sizes.get((node, cache), 0) + len(core)

    def fit(size: int) -> tuple[bool, int]:
        return size < count, size if size >= count else -size  # the smallest that suffices, else the largest

    return sorted(cores, key=lambda core: (fit(sizes[group(core)[0]]), fit(sizes[group(core)]), group(core), min(core)))

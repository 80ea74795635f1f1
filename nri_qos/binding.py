"""To which NUMA nodes a container is bound: by its policy, and by its scope, itself or its whole pod. Pure.

With scope ``pod`` the first container to be created decides for all: nodes with room for the whole pod are chosen, and
reserved for it. NRI tells what the containers of a pod request together; where an old runtime does not, the nodes have
to have room for each container as it comes.

Source: design section 8; reference/nri.md sections 4.1 and 4.3 (2, 5).
"""

from dataclasses import dataclass

from nri_qos import classes, cpulist, placement
from nri_qos.model import NumaPolicy, NumaScope, Placement
from nri_qos.placement import Room
from nri_qos.pools import Key, Node, Occupied
from nri_qos.request import Request
from ubhost.errors import Exhausted


@dataclass(frozen=True, slots=True)
class Need:
    """What the nodes are to have room for: a container, or a pod."""

    label: str
    cpus: int  # thousandths
    memory: int  # bytes


def is_whole(request: Request, policy: NumaPolicy) -> bool:
    """Whether the pod is bound as a whole."""
    return policy is not NumaPolicy.NONE and classes.numa_scope(request.pod)[0] is NumaScope.POD


def own_keys(request: Request, policy: NumaPolicy, node: Node) -> set[Key]:
    """Return the reservations that do not stand in the container's way: its own, or those of its pod."""
    if not is_whole(request, policy):
        return {request.key}
    return {key for key in node.occupied.placements if key[0] == request.pod.key} | {request.key}


def choose(request: Request, policy: NumaPolicy, room: Room, cpus: int, node: Node) -> frozenset[int] | None:
    """Return the NUMA nodes to bind to, or ``None`` for no binding. ``cpus`` of the container, in thousandths.

    ``room`` is what is left beside ``own_keys``.

    Raises:
        Exhausted: its policy demands what no nodes have left.
    """
    if policy is NumaPolicy.NONE:
        return None
    alone = Need(request.label, max(cpus, 1), request.memory)
    if not is_whole(request, policy):
        return _chosen(alone, policy, room, node)
    pod = need_of_pod(request, node)
    nodes = _nodes_of_pod(request, node)
    if not nodes:
        return _chosen(pod, policy, room, node)
    needed = alone.cpus + _shared_by_others(request, node)
    if policy is NumaPolicy.BEST_EFFORT:
        return nodes if placement.has_room(nodes, room, needed, 0) else _chosen(alone, policy, room, node)
    if not placement.has_room(nodes, room, needed, pod.memory):
        raise _exhausted(alone, policy, f"NUMA node {cpulist.render(nodes)}, where its pod is, has not")
    return nodes


def need_of_pod(request: Request, node: Node) -> Need:
    """Return what the pod as a whole needs: what the runtime tells, at least what is there of it."""
    others = _others(request, node)
    said = request.pod.resources
    return Need(
        f"pod {request.pod.namespace}/{request.pod.name}",
        max(said.requested, request.cpus + sum(place.cpus for place in others), 1),
        max(said.memory_limit or 0, request.memory + sum(place.memory for place in others)),
    )


def of_pod(need: Need, nodes: frozenset[int], request: Request, node: Node) -> Placement:
    """Return what to reserve for the pod as a whole, on the nodes where it is already, or else on ``nodes``."""
    return Placement(nodes=_nodes_of_pod(request, node) or nodes, memory=need.memory, cpus=need.cpus)


def memory_of(nodes: frozenset[int], memory: int, room: Room, node: Node) -> frozenset[int]:
    """Return the nodes whose memory goes with the CPUs of ``nodes``: their own, and the nearest others until it fits.

    A bound node that is full is an OOM kill, and one without memory means the memory of all.
    """
    chosen = set(nodes & node.local)
    near = [member for member in node.machine.nodes if member.id in nodes]
    others = [other for other in node.machine.nodes if other.id in node.local - nodes]
    others.sort(key=lambda other: (min((placement.distance(a, other) for a in near), default=0), other.id))
    for other in others:
        if chosen and sum(room.memory.get(member, 0) for member in chosen) >= memory:
            break
        chosen.add(other.id)
    return frozenset(chosen)


def _chosen(need: Need, policy: NumaPolicy, room: Room, node: Node) -> frozenset[int] | None:
    machine = node.machine
    if policy is NumaPolicy.BEST_EFFORT:
        chosen = placement.choose_nodes(machine, room, need.cpus, need.memory)
        return chosen or placement.choose_nodes(machine, room, need.cpus, 0) or None
    largest = 1
    if policy is NumaPolicy.RESTRICTED:  # no more nodes than it would need on an empty machine
        empty = Node(machine, node.config, Occupied())
        largest = len(placement.choose_nodes(machine, empty.room(empty.pool, ()), need.cpus, need.memory)) or 1
    nodes = placement.choose_nodes(machine, room, need.cpus, need.memory, largest)
    if not nodes:
        raise _exhausted(need, policy, "no one NUMA node has" if largest == 1 else f"no {largest} NUMA nodes have")
    return nodes


def _exhausted(need: Need, policy: NumaPolicy, where: str) -> Exhausted:
    memory = f" and {need.memory} bytes of memory" if need.memory else ""
    return Exhausted(
        f"{need.label} asks for NUMA policy {policy.value}, but {where} {need.cpus / 1000:g} CPUs{memory} left"
    )


def _nodes_of_pod(request: Request, node: Node) -> frozenset[int]:
    """Return where the pod is already; of an adopted pod, where its containers are."""
    held = node.occupied.placements.get(request.whole, Placement()).nodes
    return held or frozenset[int]().union(*(place.nodes or () for place in _others(request, node)))


def _shared_by_others(request: Request, node: Node) -> int:
    """Return the thousandths of CPUs that the pod's other containers request of those that are nobody's own."""
    return sum(place.cpus for place in _others(request, node) if not place.exclusive)


def _others(request: Request, node: Node) -> list[Placement]:
    """Return what is reserved for the pod's other containers that run."""
    occupied = node.occupied
    return [
        place
        for key, place in occupied.placements.items()
        if key[0] == request.pod.key and key not in (request.key, request.whole) and key not in occupied.stopped
    ]

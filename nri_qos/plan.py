"""Decides what a container gets. Pure: no clock, no files, no protocol.

    offline (BE)   least weight; the CPUs that online work leaves; local memory, and borrowed memory if allowed
    online         the CPUs that are nobody's own; local memory only, and of few NUMA nodes if a policy asks for it
    online, HLS    CPUs of its own, if the pod is Guaranteed and asks for whole ones
    others         nothing, except that they leave alone what is somebody's own

What somebody else has set already (kubelet's static CPU manager, an earlier plugin) is left as it is: two plugins
that set the same field make the runtime refuse the container.

Source: design section 8; reference/nri.md sections 1.8, 4 and 5 (C2, C17, E8, E13).
"""

from dataclasses import replace
from math import ceil

from nri_qos import binding, classes, cpulist, placement
from nri_qos.config import Failure
from nri_qos.model import NO_REQUEST_SHARES, Container, Decision, NumaPolicy, Placement, Pod, QosClass
from nri_qos.placement import Room
from nri_qos.pools import Node
from nri_qos.request import Request
from ubhost.errors import Exhausted, InvalidRequest

GUARANTEED_OOM_SCORE = -997


def plan_create(request: Request, node: Node) -> Decision:
    """Return what the container gets.

    Raises:
        Exhausted: its NUMA policy, or ``failure: strict``, demands what this node has not left.
    """
    if request.classified.qos is QosClass.BE:
        decision = _offline(request, node)
    elif request.classified.qos.is_online:
        decision = _online(request, node)
    else:
        decision = _others(request, node)
    decision = replace(decision, reasons=(request.classified.reason, *decision.reasons))
    return _respect(decision, request.container)


def is_guaranteed(pod: Pod, container: Container) -> bool:
    """Whether this is a container of a Guaranteed pod.

    kubelet puts its cgroup directly below the root of the pods. Where the runtime does not tell, its OOM score says so;
    and where it does not tell that either, a CPU limit that equals the request, and a memory limit.
    """
    where = f"{pod.cgroup_parent} {container.cgroups_path}"
    if "besteffort" in where or "burstable" in where:
        return False
    if "kubepods" in where:
        return True
    if container.oom_score_adj is not None:
        return container.oom_score_adj == GUARANTEED_OOM_SCORE
    resources = container.resources
    return bool(resources.whole_cpus and resources.quota and resources.memory_limit)


def _offline(request: Request, node: Node) -> Decision:
    room = node.offline_room
    cpus = (node.occupied.offline or room) & room or room
    if node.occupied.overdrawn.has(request.pod.owner):
        raise Exhausted(
            f"{request.label}: the pod or its namespace has more borrowed memory than remote_limit allows; "
            f"ubnode qos node N --users shows who has it"
        )
    mems = node.local if node.occupied.homebound.has(request.pod.owner) else node.offline_memory
    return Decision(
        QosClass.BE,
        ("least weight", f"CPUs left by online work: {cpulist.render(cpus)}", f"memory: node {cpulist.render(mems)}"),
        shares=NO_REQUEST_SHARES,
        cpus=cpus,
        mems=mems,
    )


def _others(request: Request, node: Node) -> Decision:
    rest = node.machine.online - node.exclusive
    if not node.exclusive or not rest:
        return Decision(request.classified.qos, ("not managed",))
    own = cpulist.render(node.exclusive)
    return Decision(request.classified.qos, ("not managed", f"kept off CPUs {own}: somebody's own"), cpus=rest)


def _online(request: Request, node: Node) -> Decision:
    qos = request.classified.qos
    policy, _ = classes.numa_policy(request.pod, qos, node.config)
    if request.container.resources.cpus:
        return _beside(request, policy, node)
    within, doubts = _listed(request, node)
    count = request.container.resources.whole_cpus
    if qos is QosClass.HLS and count and is_guaranteed(request.pod, request.container):
        own = _exclusive(request, count, policy, node, within)
        if own is not None:
            return replace(own, reasons=(*doubts, *own.reasons))
        doubts = (*doubts, f"no {count} CPUs are left that could be its own")
    if doubts and node.config.failure is Failure.STRICT:
        raise Exhausted(f"{request.label}: {'; '.join(doubts)}")
    given = _shared(request, policy, node, within)
    return replace(given, reasons=(*doubts, *given.reasons))


def _listed(request: Request, node: Node) -> tuple[frozenset[int], tuple[str, ...]]:
    """Return the CPUs to which a pod limits itself, all if it does not, and why its wish is not followed."""
    wanted, refused = classes.cpu_list(request.pod, request.classified.qos, node.config)
    if refused:
        why = "that is no list of CPUs, or its namespace is not in cpu_list_namespaces"
        return node.pool, (f"CPUs {refused[0][1]!r} asked for, but {why}",)
    if wanted is not None and not wanted & node.pool:
        return node.pool, (f"none of CPUs {cpulist.render(wanted)} can be had",)
    return node.pool if wanted is None else wanted & node.pool, ()


def _beside(request: Request, policy: NumaPolicy, node: Node) -> Decision:
    """Return the memory that goes with CPUs which somebody else chose."""
    try:
        cpus = cpulist.parse(request.container.resources.cpus)
    except InvalidRequest:
        return Decision(request.classified.qos, ())  # the runtime will say what is wrong with them
    nodes = None if policy is NumaPolicy.NONE else node.machine.nodes_of(cpus) or None
    room = node.room(cpus, binding.own_keys(request, policy, node))
    return _bound(request, policy, cpus, nodes, room, node)


def _exclusive(request: Request, count: int, policy: NumaPolicy, node: Node, listed: frozenset[int]) -> Decision | None:
    """Return the decision with ``count`` CPUs of its own; ``None`` if offline and shared work would keep too few."""
    held = node.occupied.placements
    lent = {key for key in held if key[0] == request.key[0] and key in node.occupied.stopped and key != request.key}
    ours = {request.key, *lent}
    taken = node.occupied.foreign.union(*(place.exclusive for key, place in held.items() if key not in ours))
    free = listed - taken
    room = node.room(free, ours | binding.own_keys(request, policy, node), request.device_nodes)
    before = [held[key].exclusive for key in (request.key, *sorted(lent)) if key in held]
    stay = next(
        (cpus for cpus in before if len(cpus) == count and cpus <= free and _may_stay(policy, node, cpus)), None
    )
    nodes: frozenset[int] | None
    if stay is not None:
        cpus = stay
        nodes = None if policy is NumaPolicy.NONE else node.machine.nodes_of(stay)
    else:
        nodes = binding.choose(request, policy, room, count * 1000, node)
        within = free if nodes is None else free & node.cpus_of(nodes)
        cpus = placement.take_cpus(node.machine, within, count, preferred=frozenset[int]().union(*before))
    if not cpus or not leaves_floor(node, taken | cpus):
        return None
    return _bound(request, policy, cpus, nodes, room, node, exclusive=True)


def leaves_floor(node: Node, taken: frozenset[int]) -> bool:
    """Whether offline work keeps its floor beside CPUs that are somebody's own."""
    return len(node.pool - node.machine.cores(taken)) >= max(1, ceil(node.config.floor))


def _may_stay(policy: NumaPolicy, node: Node, cpus: frozenset[int]) -> bool:
    return policy is not NumaPolicy.SINGLE_NUMA_NODE or len(node.machine.nodes_of(cpus)) == 1


def _shared(request: Request, policy: NumaPolicy, node: Node, listed: frozenset[int]) -> Decision:
    shared = node.shared & listed or node.shared
    room = node.room(shared, binding.own_keys(request, policy, node), request.device_nodes)
    nodes = binding.choose(request, policy, room, request.cpus, node)
    cpus = shared if nodes is None else shared & node.cpus_of(nodes) or shared
    given = _bound(request, policy, cpus, nodes, room, node)
    return replace(given, placement=replace(given.placement or Placement(), is_shared=True))


def _bound(
    request: Request,
    policy: NumaPolicy,
    cpus: frozenset[int],
    nodes: frozenset[int] | None,
    room: Room,
    node: Node,
    *,
    exclusive: bool = False,
) -> Decision:
    pod = binding.need_of_pod(request, node) if nodes is not None and binding.is_whole(request, policy) else None
    memory = request.memory if pod is None else pod.memory
    mems = node.local if nodes is None else binding.memory_of(nodes, memory, room, node)
    bound = None if nodes is None else nodes - node.remote | mems
    what = "CPUs of its own" if exclusive else "CPUs shared by online work"
    where = "local memory" if nodes is None else "memory near its CPUs" if pod is None else "where its pod is"
    place = Placement(
        exclusive=cpus if exclusive else frozenset(),
        nodes=bound,
        memory=0 if nodes is None else request.memory,
        cpus=request.cpus,
    )
    return Decision(
        request.classified.qos,
        (f"{what}: {cpulist.render(cpus)}", f"{where}: node {cpulist.render(mems)}"),
        cpus=cpus,
        mems=mems,
        placement=place,
        pod=None if pod is None or bound is None else binding.of_pod(pod, bound, request, node),
    )


def _respect(decision: Decision, container: Container) -> Decision:
    """Leave out what somebody else has set."""
    resources = container.resources
    kept = [f"{name} {value} set by somebody else" for name, value in _set_already(container) if value]
    if not kept:
        return decision
    return replace(
        decision,
        reasons=(*decision.reasons, *kept),
        cpus=None if resources.cpus else decision.cpus,
        mems=None if resources.mems else decision.mems,
    )


def _set_already(container: Container) -> tuple[tuple[str, str], ...]:
    return ("cpus", container.resources.cpus), ("mems", container.resources.mems)

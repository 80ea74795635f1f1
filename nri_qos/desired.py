"""What the cgroup files of this node should say. Pure: the model and the loop's decision in, settings out.

Pod level: weight and quota of offline pods, and only once a container of theirs runs. Container level: CPUs and memory
nodes. What somebody else pinned is theirs; what nobody of ours needs any more goes back to what it was.

Source: design section 8; reference/nri.md sections 0 (4), 3, 4.4 and 5 (C19, E8, E13, E14).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from nri_qos import claims, classes, cpulist, knobs
from nri_qos.census import Census, Household
from nri_qos.claims import Member, Sandbox
from nri_qos.memory import NOBODY, Over
from nri_qos.model import QosClass
from nri_qos.pools import Node
from nri_qos.settings import Place, Setting, burst, cpu_max, memory

OFFLINE_WEIGHT = "1"
CONTROLLERS = "cgroup.subtree_control"


@dataclass(frozen=True, slots=True)
class Squeezed:
    """What the loop decided for offline work."""

    cpus: frozenset[int]
    quota: Mapping[str, float] | Mapping[str, None]  # folder of a pod -> CPUs; None lifts our limit
    high: Mapping[str, float] = field(default_factory=dict)  # folder of a pod -> bytes
    homebound: Over = NOBODY  # who is kept off borrowed memory


def settings(census: Census, squeezed: Squeezed, held: Iterable[Place]) -> dict[Place, Setting]:
    """Return every setting that should hold; other places that we ``held`` before get back what they said."""
    wanted = {setting.place: setting for setting in _wanted(census, squeezed)}
    folders = census.all_folders()
    left = (place for place in held if place not in wanted and place[0] in folders and place[1] != CONTROLLERS)
    return wanted | {place: Setting(*place, None) for place in left}


def _wanted(census: Census, squeezed: Squeezed) -> Iterator[Setting]:
    for house in census.households:
        for tenant in house.tenants:
            if tenant.folder is not None:
                yield from _of_container(tenant.member, house, tenant.folder, census, squeezed)
        if house.folder is not None:
            yield from _of_pod(house, house.folder, census.node, squeezed)


def choose_offline(node: Node, counts: Mapping[int, int], now: frozenset[int]) -> frozenset[int]:
    """Return ``counts`` CPUs of each NUMA node for offline work: what it has, then whole cores, high numbers first."""
    chosen: set[int] = set()
    for numa in node.machine.nodes:
        free = node.offline_room.intersection(numa.cpus)
        cores = {node.machine.core(cpu) & free for cpu in free}
        ordered = sorted(cores, key=lambda core: (-len(core & now), -max(core)))
        chosen.update([cpu for core in ordered for cpu in sorted(core, reverse=True)][: counts.get(numa.id, 0)])
    return frozenset(chosen) or node.offline_room


def _of_container(
    member: Member, house: Household, folder: str, census: Census, squeezed: Squeezed
) -> Iterator[Setting]:
    node = census.node
    asked = member.container.resources
    is_theirs = bool(asked.cpus) and member.decision.cpus is None
    if is_theirs and census.kubelet_is_static and member.decision.qos is QosClass.BE:
        cpus: frozenset[int] | None = squeezed.cpus & claims.ids(asked.cpus) or None
    else:
        cpus = None if is_theirs else _cpus(member, house.sandbox, node, squeezed)
    if cpus is not None:
        yield Setting(folder, "cpuset.cpus", cpulist.render(cpus), _before(member, asked.cpus, member.decision.cpus))
    if member.own_cpus and node.config.own_cpus_without_quota:
        yield Setting(folder, "cpu.max", "max")
    if not member.decision.qos.is_managed or (asked.mems and member.decision.mems is None):
        return
    is_homebound = member.decision.qos is QosClass.BE and squeezed.homebound.has(house.sandbox.pod.owner)
    mems = cpulist.render(node.local if is_homebound else _mems(member, node))
    yield Setting(folder, "cpuset.mems", mems, _before(member, asked.mems, member.decision.mems))
    if member.decision.qos is QosClass.BE:
        weight = None if member.is_adopted or asked.shares is None else str(weight_of(asked.shares))
        yield Setting(folder, "cpu.weight", OFFLINE_WEIGHT, weight)


def _of_pod(house: Household, folder: str, node: Node, squeezed: Squeezed) -> Iterator[Setting]:
    quota = squeezed.quota.get(folder) if house.qos is QosClass.BE else None
    for file, value in node.config.knobs.get(house.qos, {}).items():
        if file == "cpu.max.burst" and quota is not None:
            yield Setting(folder, file, burst(int(value), quota))
        elif file != "memory.high" or folder not in squeezed.high:
            yield Setting(folder, file, knobs.value(file, value))
    if house.pinned and not house.shares_cpus and node.config.own_cpus_without_quota:
        yield Setting(folder, "cpu.max", "max")
    if house.qos is not QosClass.BE:
        return
    if node.config.offline_idle:
        yield Setting(folder, "cpu.idle", "1")
    else:
        yield Setting(folder, "cpu.weight", OFFLINE_WEIGHT)
    if folder in squeezed.high:
        yield Setting(folder, "memory.high", memory(squeezed.high[folder]))
    if quota is not None:
        if "cpu.max.burst" not in node.config.knobs.get(house.qos, {}):
            yield Setting(folder, "cpu.max.burst", "0")  # somebody's burst over the quota makes the kernel refuse it
        yield Setting(folder, "cpu.max", cpu_max(quota))


def _cpus(member: Member, sandbox: Sandbox, node: Node, squeezed: Squeezed) -> frozenset[int] | None:
    """Return where a container may run; ``None`` if that is not ours to say."""
    qos = member.decision.qos
    if qos is QosClass.BE:
        return squeezed.cpus
    if qos.is_online:
        place = node.occupied.placements.get((sandbox.pod.key, member.container.name))
        if place is not None and place.exclusive:
            return place.exclusive & node.machine.online or None
        near = node.cpus_of(place.nodes) if place is not None and place.nodes else node.shared
        listed, _ = classes.cpu_list(sandbox.pod, qos, node.config)
        shared = node.shared if listed is None else node.shared & listed or node.shared
        return shared & near or shared
    return node.machine.online - node.exclusive or None if node.exclusive else None


def _mems(member: Member, node: Node) -> frozenset[int]:
    """Return the memory nodes of a managed container; a node that went away is left out."""
    if member.decision.qos is QosClass.BE:
        return node.offline_memory
    place = member.decision.placement
    if place is not None and place.nodes:
        return place.nodes & node.with_memory or node.local
    if member.is_adopted and member.decision.mems:
        return member.decision.mems & node.with_memory or node.local
    return node.local


def _before(member: Member, asked: str, decided: frozenset[int] | None) -> str | None:
    """Return what a file would say without us, of a container that was created with our adjustment."""
    return None if member.is_adopted or decided is None else asked


def weight_of(shares: int) -> int:
    """Return ``cpu.weight`` for the shares of cgroup v1, by kubelet's formula."""
    return max(1, min(10_000, 1 + (shares - 2) * 9999 // 262_142))

"""What the daemon tells about itself: for metrics, ``ubnode qos`` and probes. Reads only, and only when asked."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nri_qos import claims, counters, cpulist, irqs, knobs
from nri_qos.census import Household, Tenant, take
from nri_qos.cgroup import Mode
from nri_qos.files import Gone, Hierarchy
from nri_qos.loop import Loop
from nri_qos.model import QosClass
from nri_qos.plugin import Plugin
from nri_qos.pools import Node, misfit
from nri_qos.world import World
from nri_qos.writer import Writer
from ubhost.errors import HostFault
from ubhost.model import NumaNode


@dataclass(frozen=True)
class Report:
    world: World
    loop: Loop
    files: Hierarchy
    writer: Writer
    plugin: Plugin
    mode: Mode
    irqs: Path  # /proc/irq
    trouble: str | None = None  # why cgroup files are not written, though they should be

    def not_ready(self) -> str | None:
        """Return why the daemon does not do its work, ``None`` if it does."""
        phase = self.plugin.phase
        if not phase.is_configured:
            return "not connected to the runtime"
        if not phase.is_synchronized:
            return "waiting for the runtime to synchronize"
        if self.world.machine is None:
            return "the CPUs of this node cannot be read"
        if self.mode is not Mode.V2:
            return f"cgroup hierarchy is {self.mode.value}, v2 is needed"
        return misfit(self.world.machine, self.world.config) or self.trouble

    def state(self) -> dict[str, Any]:
        """Return the figures of the last period, and what this node can do."""
        seen, phase = self.loop.seen, self.plugin.phase
        observed = seen.observed
        with self.world.locked(to_change=False) as world:
            pods = Counter(sandbox.classified.qos.value for sandbox in world.sandboxes.values())
            own = frozenset[int]().union(*(m.own_cpus for m in world.members.values() if m.container.is_alive))
            node = None if world.machine is None else world.node()
        return {
            "nri_connected": phase.is_configured,
            "nri_synchronized": phase.is_synchronized,
            "runtime": phase.runtime,
            "offline_quota_cpus": seen.state.quota,
            "offline_cpuset_cpus": len(seen.offline),
            "online_usage_cpus": None if observed is None else observed.online,
            "other_usage_cpus": None if observed is None else observed.other,
            "pressure_ratio": None if observed is None else observed.pressure,
            "loop_seconds": seen.took,
            "irqs_on_own_cpus": len(irqs.on(self.irqs, own)),
            "because": seen.state.reason,
            "pods": pods,
            "numa_nodes": {} if node is None else {str(n.id): _numa(n, node) for n in node.machine.nodes},
            "capabilities": dict(self.writer.capabilities),
            "cgroup_mode": self.mode.value,
            "not_ready": self.not_ready(),
        }

    def counts(self) -> dict[tuple[str, ...], int]:
        return {**self.world.counts, **self.writer.counts}

    def remote_bytes(self) -> list[tuple[tuple[str, ...], float]]:
        """Return ((namespace, pod), bytes on nodes of borrowed memory) of the pods that have any."""
        census = self._census()
        if census is None or not census[0].remote:
            return []
        node, households = census
        return [
            ((house.sandbox.pod.namespace, house.sandbox.pod.name), float(remote))
            for house in households
            if (remote := sum(size for numa, size in self.memory(house.folder).items() if numa in node.remote))
        ]

    def remote_containers(self) -> list[tuple[tuple[str, ...], float]]:
        """Return ((class,), containers that the kernel lets use borrowed memory), whoever allowed it."""
        census = self._census()
        if census is None or not census[0].remote:
            return []
        node, households = census
        found = Counter(
            house.qos.value for house in households for t in house.tenants if self._mems(t.folder) & node.remote
        )
        return [((qos,), float(count)) for qos, count in found.items()]

    def away_bytes(self) -> list[tuple[tuple[str, ...], float]]:
        """Return ((namespace, pod), bytes on other NUMA nodes than its own) of the pods that are bound to some."""
        census = self._census()
        found: list[tuple[tuple[str, ...], float]] = []
        for house in census[1] if census else ():
            bound = [tenant.member.decision.placement for tenant in house.tenants]
            own = [place.nodes for place in bound if place is not None and place.nodes is not None]
            if len(own) == len(bound):
                nodes = frozenset[int]().union(*own)
                away = sum(size for numa, size in self.memory(house.folder).items() if numa not in nodes)
                found.append(((house.sandbox.pod.namespace, house.sandbox.pod.name), float(away)))
        return found

    def oom_kills(self) -> list[tuple[tuple[str, ...], float]]:
        """Return ((namespace, pod, class), processes killed) of the pods that had any.

        ``oom_kill`` counts those that a full NUMA node cost as well, which ``oom`` and ``max`` do not.
        """
        census = self._census()
        found: list[tuple[tuple[str, ...], float]] = []
        for house in census[1] if census else ():
            pod, kills = house.sandbox.pod, counters.fields(self._read(house.folder, "memory.events")).get("oom_kill")
            if kills:
                found.append(((pod.namespace, pod.name, house.qos.value), float(kills)))
        return found

    def pods(self) -> list[dict[str, Any]]:
        """Return a row for each pod that runs, with its containers."""
        census = self._census()
        if census is None:
            return []
        return [self._pod(house) for house in census[1]]

    def memory(self, folder: str | None) -> dict[int, int]:
        """Return the bytes that a cgroup has on each NUMA node."""
        return counters.memory_by_node(self._read(folder, "memory.numa_stat"))

    def _mems(self, folder: str | None) -> frozenset[int]:
        """Return the NUMA nodes on which the kernel lets a container have memory."""
        return claims.ids(self._read(folder, "cpuset.mems.effective") or self._read(folder, "cpuset.mems"))

    def _read(self, folder: str | None, file: str) -> str:
        """Return what a file says; nothing if it is not there."""
        if folder is None:
            return ""
        try:
            return self.files.read(folder, file)
        except (OSError, Gone):
            return ""

    def _census(self) -> tuple[Node, tuple[Household, ...]] | None:
        try:
            with self.world.locked(to_change=False) as world:
                node, sandboxes, members = world.node(), dict(world.sandboxes), list(world.members.values())
        except HostFault:
            return None
        return node, take(sandboxes, members, node).households

    def _pod(self, house: Household) -> dict[str, Any]:
        pod, rates = house.sandbox.pod, self.loop.seen.pods.get(house.folder or "")
        return {
            "namespace": pod.namespace,
            "pod": pod.name,
            "uid": pod.uid,
            "class": house.qos.value,
            "because": house.sandbox.classified.reason,
            "cgroup": house.folder,
            "usage_cpus": None if rates is None else rates.usage,
            "waiting_ratio": None if rates is None else rates.waiting,
            "is_throttled": None if rates is None else rates.is_throttled,
            "is_homebound": house.qos is QosClass.BE and self.world.homebound.has(pod.owner),
            "quota_cpus": self.loop.seen.quota.get(house.folder or ""),
            "memory_by_node": {str(numa): size for numa, size in sorted(self.memory(house.folder).items())},
            "files": self._files(house.folder, self.world.config.knobs.get(house.qos, ())),
            "containers": [self._container(tenant) for tenant in house.tenants],
        }

    def _container(self, tenant: Tenant) -> dict[str, Any]:
        member = tenant.member
        return {
            "container": member.container.name,
            "id": member.container.id,
            "cgroup": tenant.folder,
            "cpus": None if member.decision.cpus is None else cpulist.render(member.decision.cpus),
            "mems": None if member.decision.mems is None else cpulist.render(member.decision.mems),
            "own_cpus": cpulist.render(member.own_cpus),
            "effective_mems": cpulist.render(self._mems(tenant.folder)),
            "irqs": irqs.on(self.irqs, member.own_cpus),
            "why": list(member.decision.reasons),
            "files": self._files(tenant.folder),
        }

    def _files(self, folder: str | None, configured: Iterable[str] = ()) -> Mapping[str, str]:
        """Return what the files that we work with say now, and those that are configured."""
        found = {}
        for file in (*knobs.SET, *configured) if folder is not None else ():
            try:
                found[file] = self.files.read(folder or "", file)
            except (OSError, Gone):
                continue
        return found


def _numa(numa: NumaNode, node: Node) -> dict[str, Any]:
    return {
        "cpus": cpulist.render(numa.cpus),
        "memory_total": numa.memory_total,
        "memory_free": numa.memory_free,  # with what the kernel would drop for a new container
        "is_borrowed": numa.id in node.remote,
    }

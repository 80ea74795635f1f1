"""What nri-qos knows and decides, as plain values: no protocol, no input or output.

Source: design section 8; reference/nri.md sections 1.7 and 4.3.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ubhost.model import NumaNode

OWN_KEY = "qos.unifiedbus.com/class"
NUMA_KEY = "qos.unifiedbus.com/numa"
SCOPE_KEY = "qos.unifiedbus.com/numa-scope"
CPUS_KEY = "qos.unifiedbus.com/cpus"

NO_REQUEST_SHARES = 2
"""What kubelet writes for a container that requests no CPU. Both of runc's formulas make weight 1 of it."""


class QosClass(Enum):
    HLS = "HLS"  # online, high latency sensitive
    LS = "LS"  # online, latency sensitive
    BE = "BE"  # offline, best effort
    SYSTEM = "system"  # the node's own: neither squeezed nor pinned
    UNDECLARED = "undeclared"

    @property
    def is_online(self) -> bool:
        return self in (QosClass.HLS, QosClass.LS)

    @property
    def is_managed(self) -> bool:
        return self.is_online or self is QosClass.BE


class NumaPolicy(Enum):
    """As kubelet's topology manager names them."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class NumaScope(Enum):
    CONTAINER = "container"
    POD = "pod"


@dataclass(frozen=True, slots=True)
class Resources:
    """What a runtime was asked to give a container; ``None`` or "" where nothing was said."""

    shares: int | None = None
    quota: int | None = None  # microseconds in each period, -1: unlimited
    period: int | None = None  # microseconds
    cpus: str = ""
    mems: str = ""
    memory_limit: int | None = None  # bytes

    @property
    def requested(self) -> int:
        """Thousandths of a CPU."""
        return (self.shares or 0) * 1000 // 1024

    @property
    def limit(self) -> float | None:
        """CPUs, ``None`` if there is no limit."""
        return self.quota / (self.period or 100_000) if self.quota and self.quota > 0 else None

    @property
    def whole_cpus(self) -> int | None:
        """Return how many whole CPUs are requested and are the limit, or ``None``.

        NRI does not carry requests, only shares: 1024 for each CPU. The quota is missing where kubelet does not
        enforce limits on pinned containers.
        """
        shares = self.shares or 0
        if shares < 1024 or shares % 1024:
            return None
        if self.quota and self.quota > 0 and self.quota * 1024 != shares * (self.period or 100_000):
            return None
        return shares // 1024


@dataclass(frozen=True, slots=True)
class Pod:
    id: str
    name: str = ""
    uid: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cgroup_parent: str = ""
    resources: Resources = Resources()  # of its containers together

    @property
    def key(self) -> str:
        """What stays the same when the sandbox of the pod is made again."""
        return self.uid or self.id

    @property
    def owner(self) -> tuple[str, str]:
        return self.namespace, self.key

    def says(self, key: str) -> str | None:
        """Return the pod's annotation ``key``, or its label of that name."""
        return self.annotations.get(key, self.labels.get(key))


class State(Enum):
    CREATED = "created"
    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Container:
    id: str
    pod_id: str
    name: str = ""
    state: State = State.CREATED
    resources: Resources = Resources()
    cgroups_path: str = ""
    oom_score_adj: int | None = None
    devices: tuple[tuple[str, int, int], ...] = ()  # type c or b, major, minor
    env: frozenset[str] = frozenset()  # names that it sets itself

    @property
    def is_alive(self) -> bool:
        return self.state is not State.STOPPED


@dataclass(frozen=True, slots=True)
class Machine:
    """CPUs and memory of this node as sysfs tells them. Ids can be sparse."""

    online: frozenset[int]
    nodes: tuple[NumaNode, ...] = ()  # online nodes, by id; ``cpus`` can include CPUs that are offline
    siblings: Mapping[int, frozenset[int]] = field(default_factory=dict)  # CPU -> hardware threads of its core
    caches: Mapping[int, int] = field(default_factory=dict)  # CPU -> smallest CPU that shares its last-level cache
    isolated: frozenset[int] = frozenset()  # isolcpus: not load-balanced

    def core(self, cpu: int) -> frozenset[int]:
        return self.siblings.get(cpu, frozenset((cpu,)))

    def cores(self, cpus: frozenset[int]) -> frozenset[int]:
        """Return ``cpus`` and every hardware thread that shares a core with one of them."""
        return frozenset(thread for cpu in cpus for thread in self.core(cpu))

    def nodes_of(self, cpus: frozenset[int]) -> frozenset[int]:
        return frozenset(node.id for node in self.nodes if cpus.intersection(node.cpus))

    def node(self, node_id: int) -> NumaNode | None:
        return next((node for node in self.nodes if node.id == node_id), None)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a container was put; kept for its (pod, name) while the pod lives, so that a restart finds it again."""

    exclusive: frozenset[int] = frozenset()  # CPUs that nobody else gets
    nodes: frozenset[int] | None = None  # NUMA nodes of its CPUs and memory; None: not bound
    memory: int = 0  # bytes reserved on ``nodes``
    cpus: int = 0  # CPUs requested, for spreading; in thousandths
    is_shared: bool = False  # we put it on CPUs that others use as well, however many they are


@dataclass(frozen=True, slots=True)
class Decision:
    """What a container gets; ``None`` leaves what the runtime was asked for."""

    qos: QosClass
    reasons: tuple[str, ...]
    shares: int | None = None
    cpus: frozenset[int] | None = None
    mems: frozenset[int] | None = None
    placement: Placement | None = None
    pod: Placement | None = None  # what is reserved for the pod as a whole

    @property
    def is_empty(self) -> bool:
        return self.shares is None and self.cpus is None and self.mems is None

"""Configuration of nri-qos. Every key is optional.

Source: design section 8.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Literal

from msgspec import Meta

from nri_qos import cpulist, knobs
from nri_qos.model import NumaPolicy, QosClass
from ubhost import quantity
from ubhost.address import host_and_port
from ubhost.errors import InvalidRequest

CpuList = str | int  # YAML reads a single CPU as a number


Quantity = str | int  # bytes: 512Mi, 4GiB
LONGEST_S = 86_400.0


class OnExit(Enum):
    KEEP = "keep"
    RESTORE = "restore"


class Failure(Enum):
    """What happens to a container about which nri-qos is in doubt."""

    LENIENT = "lenient"  # it runs, unadjusted
    STRICT = "strict"  # its creation fails


FOREIGN_KEYS: Mapping[str, Mapping[str, QosClass]] = {
    "volcano.sh/qos-level": {"LC": QosClass.HLS, "HLS": QosClass.HLS, "LS": QosClass.LS, "BE": QosClass.BE},
    "volcano.sh/preemptable": {"true": QosClass.BE, "false": QosClass.UNDECLARED},
    "koordinator.sh/qosClass": {
        "LSE": QosClass.HLS,
        "LSR": QosClass.HLS,
        "LS": QosClass.LS,
        "BE": QosClass.BE,
        "SYSTEM": QosClass.SYSTEM,
    },
    "katalyst.kubewharf.io/qos_level": {
        "dedicated_cores": QosClass.HLS,
        "shared_cores": QosClass.LS,
        "reclaimed_cores": QosClass.BE,
        "system_cores": QosClass.SYSTEM,
    },
}


@dataclass(frozen=True, slots=True)
class Selector:
    """Pods that have all ``labels`` and are in one of ``namespaces`` (any, if empty) are of class ``qos``."""

    qos: QosClass
    labels: dict[str, str] = field(default_factory=dict)
    namespaces: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RemoteBudget:
    """Quantities such as ``4Gi``."""

    pod: Quantity | None = None
    namespace: Quantity | None = None


@dataclass(frozen=True, slots=True)
class Eviction:
    """Of offline pods, when nothing else has freed enough memory."""

    after: Annotated[float, Meta(ge=1, le=LONGEST_S)] | None = None
    """Seconds for which memory must have been short; never, if not given."""

    every: Annotated[float, Meta(ge=1, le=LONGEST_S)] = 60.0
    """Seconds between two of them."""


@dataclass(frozen=True, slots=True)
class Resctrl:
    """What offline work may use of what the processor can divide."""

    cache: Annotated[int, Meta(ge=1, le=100)] | None = None
    """Percent of each last-level cache that offline work may fill; all, if not given."""

    bandwidth: Annotated[int, Meta(ge=1, le=100)] | None = None
    """Percent of the memory bandwidth that offline work may use; all, if not given."""


@dataclass(frozen=True, slots=True)
class Config:
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    period: Annotated[float, Meta(ge=0.1, le=60)] = 1.0
    """Seconds of the loop."""

    floor: Annotated[float, Meta(ge=0.1, le=cpulist.MAX_ID)] = 1.0
    """CPUs that offline work always keeps."""

    available: CpuList | None = None
    """CPUs that nri-qos hands out; all that are online and not isolated, if not given."""

    reserved: CpuList | None = None
    """CPUs of the host and of system pods: no online or offline container runs there."""

    on_exit: OnExit = OnExit.KEEP

    failure: Failure = Failure.LENIENT

    foreign_keys: dict[str, dict[str, QosClass]] = field(
        default_factory=lambda: {key: dict(values) for key, values in FOREIGN_KEYS.items()}
    )
    """Annotation or label of another system -> its values -> class. The first key that says something counts."""

    namespaces: dict[str, QosClass] = field(default_factory=lambda: {"kube-system": QosClass.SYSTEM})
    """Class of the pods of a namespace that declare none."""

    selectors: list[Selector] = field(default_factory=list)
    """Class of pods that declare none, by label; the first that fits counts."""

    cpu_list_namespaces: list[str] = field(default_factory=list)
    """Namespaces whose online pods may name the CPUs that they run on."""

    numa: dict[QosClass, NumaPolicy] = field(default_factory=lambda: {QosClass.HLS: NumaPolicy.BEST_EFFORT})
    """NUMA policy of online pods that declare none; "none" for a class that is not named."""

    remote_nodes: CpuList | None = None
    """NUMA nodes of borrowed memory; those without CPUs and at ``remote_distance`` or more, if not given."""

    remote_distance: Annotated[int, Meta(ge=11, le=255)] = 40

    offline_remote: bool = True
    """Whether offline containers may use borrowed memory. Online containers never do."""

    remote_budget: RemoteBudget = RemoteBudget()
    """Borrowed memory that offline work may have; who has more is kept off it until a fifth below."""

    remote_limit: RemoteBudget = RemoteBudget()
    """Borrowed memory with which offline work gets no further container; ``eviction`` ends its largest pod."""

    memory_reserve: Annotated[float, Meta(ge=0, le=0.5)] = 0.1
    """Share of this server's memory that shall stay available; below it, offline pods give some back."""

    eviction: Eviction = Eviction()
    """Whether offline pods are ended, the largest first, when nothing else has freed enough memory."""

    threshold: Annotated[float, Meta(gt=0, le=1)] = 0.75
    """Share of the CPUs that online and offline work may use together."""

    pressure: Annotated[float, Meta(gt=0, le=1)] = 0.1
    """Share of time that an online pod may wait for a CPU before offline work is halved."""

    shrink_on_throttling: bool = True
    """Whether an online pod that runs into its own limit halves offline work, too."""

    own_cpus_without_quota: bool = False
    """Lift the CPU limit of containers with CPUs of their own, which limit it anyway; a quota throttles at the edge."""

    offline_idle: bool = False
    """Set cpu.idle on offline pods rather than the least weight; kubelet can then not resize them in place."""

    knobs: dict[QosClass, dict[str, str]] = field(default_factory=dict)
    """Files of the pods' cgroups, by class: values that are set while a pod runs."""

    resctrl: Resctrl = Resctrl()
    """Last-level cache and memory bandwidth for offline work, where resctrl is mounted."""

    metrics_address: str | None = None
    """Address (HOST:PORT) on which Prometheus metrics, /healthz and /readyz are served."""

    def __post_init__(self) -> None:
        wrong = [f"knobs.{qos.value}: {problem}" for qos, files in self.knobs.items() for problem in knobs.check(files)]
        wrong += [
            f"{key}: {error}"
            for key in ("available", "reserved", "remote_nodes")
            if (error := _error_of(lambda key=key: ids(getattr(self, key))))  # type: ignore[misc]
        ]
        wrong += [
            f"{which}.{key}: {error}"
            for which in ("remote_budget", "remote_limit")
            for key in ("pod", "namespace")
            if (error := _error_of(lambda which=which, key=key: size(getattr(getattr(self, which), key))))  # type: ignore[misc]
        ]
        if self.metrics_address is not None and (error := _error_of(lambda: host_and_port(self.metrics_address or ""))):
            wrong.append(error)
        if wrong:
            raise ValueError("; ".join(wrong))


def ids(value: CpuList | None) -> frozenset[int] | None:
    """Return the CPUs or nodes of a list in the configuration; ``None`` if it was not given."""
    return None if value is None else cpulist.parse(str(value))


def size(value: Quantity | None) -> int | None:
    """Return the bytes of a quantity; ``None`` if it was not given."""
    return None if value is None else quantity.size(value)


def _error_of(check: Callable[[], object]) -> str | None:
    try:
        check()
    except (InvalidRequest, ValueError) as error:
        return str(error)
    return None

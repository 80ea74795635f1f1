"""Pods and containers as the model keeps them, and what the runtime's words about one that runs tell. Pure.

Source: reference/nri.md sections 1.8 and 5 (B, C).
"""

from dataclasses import dataclass

from nri_qos import classes, cpulist, plan
from nri_qos.classes import Classified
from nri_qos.config import Config
from nri_qos.model import Container, Decision, NumaPolicy, Placement, Pod, Resources
from nri_qos.request import Request
from ubhost.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A pod and its class, which stays what it was when the sandbox was made."""

    pod: Pod
    classified: Classified
    is_stopped: bool = False


@dataclass(frozen=True, slots=True)
class Member:
    """A container and what it was given."""

    container: Container
    decision: Decision
    is_adopted: bool = False  # it ran before we knew of it

    @property
    def own_cpus(self) -> frozenset[int]:
        """The CPUs that we gave to nobody else."""
        return frozenset() if self.decision.placement is None else self.decision.placement.exclusive


def own(member: Member, pod: Pod) -> frozenset[int]:
    """Return the CPUs that nobody else may get while ``member`` lives, whoever gave them to it.

    They can be others than its name holds: a successor of the same name was created before it ended.
    """
    if member.own_cpus:
        return member.own_cpus
    cpus = ids(member.container.resources.cpus)
    return cpus if is_pinned(pod, member.container, cpus) else frozenset()


def is_pinned(pod: Pod, container: Container, cpus: frozenset[int]) -> bool:
    """Whether ``cpus`` can only mean CPUs of one's own: as many as the whole ones that a Guaranteed pod asks for."""
    return bool(cpus) and container.resources.whole_cpus == len(cpus) and plan.is_guaranteed(pod, container)


def merged(old: Resources, wanted: Resources) -> Resources:
    """Return the resources of a container or a pod after an update; what the update does not name stays."""
    return Resources(
        shares=wanted.shares or old.shares,
        quota=wanted.quota or old.quota,
        period=wanted.period or old.period,
        cpus=wanted.cpus or old.cpus,
        mems=wanted.mems or old.mems,
        memory_limit=wanted.memory_limit or old.memory_limit,
    )


def differs(text: str, other: frozenset[int]) -> bool:
    """Whether a list as the runtime writes it names others than ``other``."""
    return ids(text) != other


def ids(text: str) -> frozenset[int]:
    """Return the CPUs or nodes that a runtime names; none if that is no list."""
    try:
        return cpulist.parse(text)
    except InvalidRequest:
        return frozenset()  # the runtime will refuse it; nothing for us to hold


def held(request: Request, cpus: frozenset[int], mems: frozenset[int], config: Config, *, may_own: bool) -> Placement:
    """Return what a container that runs on ``cpus`` and ``mems`` already must have been given."""
    policy, _ = classes.numa_policy(request.pod, request.classified.qos, config)
    is_own = may_own and is_pinned(request.pod, request.container, cpus)
    is_bound = bool(mems) and policy is not NumaPolicy.NONE
    return Placement(
        exclusive=cpus if is_own else frozenset(),
        nodes=mems if is_bound else None,
        memory=request.memory if is_bound else 0,
        cpus=request.cpus,
    )

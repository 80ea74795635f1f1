"""The model as the loop sees it: pods that run, their containers, and where their cgroups lie. Pure.

Made once and used until the model changes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nri_qos import paths
from nri_qos.model import Machine, QosClass
from nri_qos.pools import Node
from nri_qos.world import Member, Sandbox


@dataclass(frozen=True, slots=True)
class Tenant:
    """A container that is alive; ``folder`` is ``None`` if the runtime does not say where its cgroup is."""

    member: Member
    folder: str | None

    @property
    def is_pinned(self) -> bool:
        """Whether it has CPUs of its own from us."""
        place = self.member.decision.placement
        return place is not None and bool(place.exclusive)


@dataclass(frozen=True, slots=True)
class Household:
    """A pod with at least one container alive."""

    sandbox: Sandbox
    folder: str | None
    tenants: tuple[Tenant, ...]
    request: float  # CPUs
    bound: frozenset[int]  # the one NUMA node to which all its containers are bound, if there is one

    @property
    def qos(self) -> QosClass:
        return self.sandbox.classified.qos

    @property
    def pinned(self) -> tuple[str, ...]:
        """Folders of the containers with CPUs of their own."""
        return tuple(tenant.folder for tenant in self.tenants if tenant.is_pinned and tenant.folder is not None)


@dataclass(frozen=True, slots=True)
class Census:
    node: Node
    households: tuple[Household, ...]
    kubelet_is_static: bool = False

    def offline(self) -> list[str]:
        """Return the folders of the offline pods."""
        return [house.folder for house in self.households if house.qos is QosClass.BE and house.folder is not None]


def take(
    sandboxes: Mapping[str, Sandbox], members: Iterable[Member], node: Node, *, kubelet_is_static: bool = False
) -> Census:
    """Return the census of a model."""
    tenants: dict[str, list[Tenant]] = {}
    for member in members:
        if member.container.is_alive and member.container.pod_id in sandboxes:
            tenant = Tenant(member, paths.of_container(member.container.cgroups_path))
            tenants.setdefault(member.container.pod_id, []).append(tenant)
    households = tuple(_household(sandboxes[pod_id], tuple(own), node.machine) for pod_id, own in tenants.items())
    return Census(node, households, kubelet_is_static)


def _household(sandbox: Sandbox, tenants: tuple[Tenant, ...], machine: Machine) -> Household:
    bound = [_bound(tenant.member, machine) for tenant in tenants]
    common = frozenset[int]().union(*bound)
    return Household(
        sandbox,
        paths.of_pod(sandbox.pod.cgroup_parent),
        tenants,
        request=sum((tenant.member.container.resources.shares or 0) / 1024 for tenant in tenants),
        bound=common if len(common) == 1 and all(bound) else frozenset(),
    )


def _bound(member: Member, machine: Machine) -> frozenset[int]:
    cpus = member.decision.cpus
    nodes = machine.nodes_of(cpus) if cpus else frozenset()
    return nodes if len(nodes) == 1 else frozenset()

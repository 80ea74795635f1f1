"""The model as the loop sees it: pods that run, their containers, and where their cgroups lie. Pure.

Made once and used until the model changes.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from nri_qos import paths
from nri_qos.claims import Member, Sandbox
from nri_qos.memory import Owner
from nri_qos.model import Container, Decision, Machine, QosClass, State
from nri_qos.pools import Node


@dataclass(frozen=True, slots=True)
class Tenant:
    """A container that is alive; ``folder`` is ``None`` if the runtime does not say where its cgroup is."""

    member: Member
    folder: str | None


@dataclass(frozen=True, slots=True)
class Household:
    """A pod with at least one container alive."""

    sandbox: Sandbox
    qos: QosClass
    folder: str | None
    tenants: tuple[Tenant, ...]
    pinned: tuple[str, ...]  # folders of the containers with CPUs of their own from us
    shares_cpus: bool  # not all of its containers have CPUs of their own
    request: float  # CPUs
    bound: frozenset[int]  # the one NUMA node to which all its containers are bound, if there is one


@dataclass(frozen=True, slots=True)
class Census:
    node: Node
    households: tuple[Household, ...]
    kubelet_is_static: bool = False

    def offline(self) -> list[str]:
        """Return the folders of the offline pods."""
        return [folder for folder, _ in self._offline()]

    def limits(self) -> dict[str, float]:
        """Return the CPUs to which offline pods are limited as a whole, by their folders.

        kubelet tells the sum of the containers that have a limit where the pod has none: that limits nobody else.
        """
        limited = ((folder, house.sandbox.pod.resources.limit, house) for folder, house in self._offline())
        return {
            folder: limit
            for folder, limit, house in limited
            if limit is not None and all(t.member.container.resources.limit is None for t in house.tenants)
        }

    def _offline(self) -> Iterator[tuple[str, Household]]:
        return ((h.folder, h) for h in self.households if h.qos is QosClass.BE and h.folder is not None)

    def offline_containers(self) -> list[str]:
        """Return the folders of the containers of offline pods."""
        offline = (house for house in self.households if house.qos is QosClass.BE)
        return [tenant.folder for house in offline for tenant in house.tenants if tenant.folder is not None]

    def all_folders(self) -> set[str]:
        """Return the folders of all pods and containers."""
        inner = {tenant.folder for house in self.households for tenant in house.tenants}
        return {folder for folder in inner.union(house.folder for house in self.households) if folder is not None}

    def folders(self, containers: Collection[str]) -> set[str]:
        """Return the folders of ``containers`` and of their pods."""
        return {
            folder
            for house in self.households
            for tenant in house.tenants
            if tenant.member.container.id in containers
            for folder in (tenant.folder, house.folder)
            if folder is not None
        }

    def owners(self) -> dict[str, Owner]:
        """Return the offline pods, by their folders."""
        return {folder: house.sandbox.pod.owner for folder, house in self._offline()}

    def measured(self) -> list[str]:
        """Return the folders whose counters matter: managed pods, and containers with CPUs of their own."""
        managed = [house for house in self.households if house.qos.is_managed and house.folder is not None]
        return [folder for house in managed for folder in (house.folder, *house.pinned) if folder is not None]


def with_strangers(
    census: Census, sandboxes: Mapping[str, Sandbox], children: Callable[[str], list[str]], sighted: Collection[str]
) -> tuple[Census, frozenset[str]]:
    """Return the census with containers that nobody announced, found by their cgroups in pods that we manage.

    A container that was created while we registered can be missing from what the runtime told. It is of the class of
    its pod. Only who was ``sighted`` before the model was looked at counts: else it may be announced by now.

    Also returns the cgroups of all strangers, to be the sighted ones of the next time. ``children`` lists the cgroups
    in a folder.
    """
    known = {house.sandbox.pod.id: house for house in census.households}
    households = list(census.households)
    found: set[str] = set()
    for sandbox in sandboxes.values():
        folder = paths.of_pod(sandbox.pod.cgroup_parent)
        if folder is None or sandbox.is_stopped or not sandbox.classified.qos.is_managed:
            continue
        house = known.get(sandbox.pod.id)
        ids = {sandbox.pod.id, *(tenant.member.container.id for tenant in (house.tenants if house else ()))}
        unknown = [child for child in children(folder) if not any(id_ in child.rpartition("/")[2] for id_ in ids)]
        found.update(unknown)
        strangers = tuple(_stranger(sandbox, child) for child in unknown if child in sighted)
        if strangers:
            made = _household(sandbox, (*(house.tenants if house else ()), *strangers), census.node.machine)
            households = [made if each is house else each for each in households] if house else [*households, made]
    return replace(census, households=tuple(households)), frozenset(found)


def _stranger(sandbox: Sandbox, folder: str) -> Tenant:
    name = folder.rpartition("/")[2]
    container = Container(name, sandbox.pod.id, name, State.RUNNING)
    reasons = (sandbox.classified.reason, "found by its cgroup")
    return Tenant(Member(container, Decision(sandbox.classified.qos, reasons), is_adopted=True), folder)


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
    pinned = [tenant for tenant in tenants if tenant.member.own_cpus]
    return Household(
        sandbox,
        sandbox.classified.qos,
        paths.of_pod(sandbox.pod.cgroup_parent),
        tenants,
        pinned=tuple(tenant.folder for tenant in pinned if tenant.folder is not None),
        shares_cpus=len(pinned) < len(tenants),
        request=sum((tenant.member.container.resources.shares or 0) / 1024 for tenant in tenants),
        bound=common if len(common) == 1 and all(bound) else frozenset(),
    )


def _bound(member: Member, machine: Machine) -> frozenset[int]:
    cpus = member.decision.cpus
    nodes = machine.nodes_of(cpus) if cpus else frozenset()
    return nodes if len(nodes) == 1 else frozenset()

"""The pods and containers of this node in memory, and what each was given. No input or output.

The runtime's word is the truth: Synchronize replaces everything, and everything else can come twice, late or never.
A reservation (CPUs of one's own, NUMA nodes) belongs to pod and container name, not to a container id, and lives as
long as the pod: so a container that restarts finds its CPUs again, and an init container's go to its successors. The
runtime never hears where the loop moved a container: its cpuset tells whose a CPU is only where none are reserved.

One lock guards it; holders only compute, so nobody waits long. Source: reference/nri.md sections 1.8 and 5 (B, C).
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain

from nri_qos import claims, classes, plan
from nri_qos.claims import Member, Sandbox
from nri_qos.config import Config
from nri_qos.memory import NOBODY
from nri_qos.model import Container, Decision, Machine, Placement, Pod, QosClass, Resources, State
from nri_qos.pools import Key, Node, Occupied
from nri_qos.request import Request
from ubhost.errors import Busy, Exhausted, HostFault


class World:
    """Everything known about this node. Call its methods inside ``locked()``."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.machine: Machine | None = None
        self.kubelet_is_static = False  # kubelet's CPU manager pins containers itself
        self.offline: frozenset[int] | None = None  # where the loop holds offline containers
        self.homebound = self.overdrawn = NOBODY  # who has too much borrowed memory, and who far too much
        self.sandboxes: dict[str, Sandbox] = {}
        self.members: dict[str, Member] = {}
        self.placements: dict[Key, Placement] = {}
        self.touched: set[str] = set()  # containers whose files the runtime may just have written
        self.displaced: list[Member] = []  # found on CPUs that are not their own, since the loop last told
        self.version = 0
        self.counts: Counter[tuple[str, ...]] = Counter()  # (metric, label values …) -> how often
        self._lock = threading.Lock()

    @contextmanager
    def locked(self, timeout_s: float = 60, *, to_change: bool = True) -> Iterator["World"]:
        """Have the world to oneself; ``version`` rises unless one only looks.

        Raises:
            Busy: somebody else holds it for longer than ``timeout_s``.
        """
        if not self._lock.acquire(timeout=timeout_s):
            raise Busy(f"the model of this node is held for more than {timeout_s:.1f} s")
        try:
            yield self
            self.version += to_change
        finally:
            self._lock.release()

    def node(self) -> Node:
        """Return the node as a plan sees it.

        Raises:
            HostFault: sysfs has not been read yet, or could not be.
        """
        if self.machine is None:
            raise HostFault("the CPUs of this node are not known yet")
        return Node(self.machine, self.config, self._occupied())

    def synchronize(self, pods: Iterable[Pod], containers: Iterable[Container]) -> None:
        """Replace everything by what the runtime says there is; keep the reservations of pods that still are."""
        known = self.placements
        self.sandboxes, self.members, self.placements = {}, {}, {}
        for pod in pods:
            self.add_pod(pod)
        alive = {sandbox.pod.key for sandbox in self.sandboxes.values()}
        self.placements = {key: place for key, place in known.items() if key[0] in alive}
        self._adopt(containers)
        self.touched &= self.members.keys()
        if self.machine is not None:
            self.rehome()

    def add_pod(self, pod: Pod) -> Sandbox:
        """Take in a pod; one that is known keeps its class."""
        known = self.sandboxes.get(pod.id)
        classified = classes.classify(pod, self.config)
        if known is not None and known.classified.qos is not classified.qos:
            self.counts["class_changes_ignored",] += 1
            classified = known.classified
        if known is None:
            numa = classes.numa_policy(pod, classified.qos, self.config)[1], classes.numa_scope(pod)[1]
            listed = classes.cpu_list(pod, classified.qos, self.config)[1]
            for key, _ in chain(classified.invalid, *numa, listed):
                self.counts["invalid_values", key] += 1
        self.sandboxes[pod.id] = Sandbox(pod, classified)
        return self.sandboxes[pod.id]

    def stop_pod(self, pod_id: str) -> None:
        """Release what the pod held, unless a newer sandbox of the same pod holds it."""
        sandbox = self.sandboxes.get(pod_id)
        if sandbox is None:
            return
        self.sandboxes[pod_id] = replace(sandbox, is_stopped=True)
        if not any(s.pod.key == sandbox.pod.key and not s.is_stopped for s in self.sandboxes.values()):
            self.placements = {key: place for key, place in self.placements.items() if key[0] != sandbox.pod.key}

    def remove_pod(self, pod_id: str) -> None:
        self.stop_pod(pod_id)
        self.sandboxes.pop(pod_id, None)
        for member in [m for m in self.members.values() if m.container.pod_id == pod_id]:
            self.removed(member.container.id)

    def create(
        self,
        pod: Pod | None,
        container: Container,
        device_nodes: frozenset[int] = frozenset(),
        given: tuple[str, ...] = (),
    ) -> Decision:
        """Decide about a new container, and remember it.

        Args:
            pod: as the runtime tells it, if it does.
            container: as the runtime was asked for it.
            device_nodes: where its devices are.
            given: what its pod was given, in words; only remembered.

        Raises:
            Exhausted: it must not be created, see ``plan.plan_create``.
            HostFault: the node's CPUs are not known.
        """
        request = replace(self._request(pod, container), device_nodes=device_nodes)
        decision = plan.plan_create(request, self.node())
        decision = replace(decision, reasons=(*decision.reasons, *given))
        self.members[container.id] = Member(container, decision)
        if decision.placement is not None:
            self.placements[request.key] = decision.placement
        else:
            self.placements.pop(request.key, None)
        if decision.pod is not None:
            self.placements[request.whole] = decision.pod
        return decision

    def update(self, pod: Pod | None, container: Container, wanted: Resources) -> Decision | None:
        """Return what must stay as we decided although ``wanted`` says otherwise; ``None`` if nothing does."""
        member = self.members.get(container.id)
        if member is None:
            self.counts["unknown_containers",] += 1
            self._adopt([container], pod)
            return None
        resources = claims.merged(member.container.resources, wanted)
        member = replace(member, container=replace(container, resources=resources))
        self.members[container.id] = member
        if member.own_cpus and resources.whole_cpus != len(member.own_cpus):
            moved = self._place_again(member)
            if moved is not None:
                return moved
        ours = member.decision
        kept = replace(
            ours,
            shares=ours.shares if wanted.shares and wanted.shares != ours.shares else None,
            cpus=ours.cpus if wanted.cpus and ours.cpus and claims.differs(wanted.cpus, ours.cpus) else None,
            mems=ours.mems if wanted.mems and ours.mems and claims.differs(wanted.mems, ours.mems) else None,
        )
        return None if kept.is_empty else kept

    def rehome(self) -> list[Member]:
        """Give containers whose own CPUs went offline others; return them. Else the kernel lets them run anywhere."""
        online = self.node().machine.online
        homeless = [m for m in self._owners() if not m.own_cpus <= online]
        return [self.members[m.container.id] for m in homeless if self._place_again(m) is not None]

    def _owners(self) -> list[Member]:
        """Return the containers that hold the CPUs reserved for their name: not one that its successor has replaced."""
        alive = [m for m in self.members.values() if m.container.is_alive and m.own_cpus]
        held = ((m, self.placements.get(self._request(None, m.container).key, Placement())) for m in alive)
        return [member for member, place in held if place.exclusive == member.own_cpus]

    def _place_again(self, member: Member) -> Decision | None:
        """Give a container with CPUs of its own as many as it asks for now; ``None`` if there are not so many."""
        container = replace(member.container, resources=replace(member.container.resources, cpus="", mems=""))
        request = self._request(None, container)
        try:
            decision = plan.plan_create(request, self.node())
        except (Exhausted, HostFault):
            return None
        if decision.placement is None or not decision.placement.exclusive:
            return None
        self.members[container.id] = replace(member, decision=decision)
        self.placements[request.key] = decision.placement
        return decision

    def started(self, container: Container) -> None:
        self._set_state(container, State.RUNNING)
        self.touch(container.id)

    def stopped(self, container: Container) -> None:
        self._set_state(container, State.STOPPED)

    def touch(self, container_id: str) -> None:
        """Remember that the runtime may have written a container's files: it has started, or was updated."""
        if container_id in self.members:
            self.touched.add(container_id)

    def removed(self, container_id: str) -> None:
        self.members.pop(container_id, None)
        self.touched.discard(container_id)  # where no loop runs, nobody else takes it out

    def _set_state(self, container: Container, state: State) -> None:
        member = self.members.get(container.id)
        if member is None:
            self.counts["unknown_containers",] += 1
            if state is not State.STOPPED:
                self._adopt([replace(container, state=state)])
            return
        self.members[container.id] = replace(member, container=replace(member.container, state=state))

    def _request(self, pod: Pod | None, container: Container) -> Request:
        sandbox = self.sandboxes.get(pod.id if pod else container.pod_id)
        if sandbox is None:
            sandbox = self.add_pod(pod or Pod(container.pod_id))
        return Request(sandbox.pod, container, sandbox.classified)

    def _adopt(self, containers: Iterable[Container], pod: Pod | None = None) -> None:
        """Take in containers that exist already; who cannot keep the CPUs it had gets others, after all the rest."""
        requests = sorted((self._request(pod, container) for container in containers), key=self._weakness)
        for container in [request.container for request in requests if not self._take_in(request)]:
            self._place_again(self.members[container.id])
            self.displaced.append(self.members[container.id])
            self.counts["displaced",] += 1

    def _weakness(self, request: Request) -> int:
        """Order claims: reserved and so in the runtime, only reserved, not reserved."""
        kept = self._reserved(request)
        return 2 if kept is None else int(kept.exclusive != claims.ids(request.container.resources.cpus))

    def _take_in(self, request: Request) -> bool:
        """Take in a container with what it holds; return whether it can keep the CPUs that it had for its own."""
        container, qos = request.container, request.classified.qos
        cpus, mems = claims.ids(container.resources.cpus), claims.ids(container.resources.mems)
        decision = Decision(qos, (request.classified.reason, "found running"))
        is_kept = True
        if qos.is_online and container.is_alive:
            kept, known = self._reserved(request), self.placements.get(request.key, Placement())
            is_shared = known.is_shared or (kept is None and not self._may_be_pinned(request, cpus))
            pinned = frozenset() if is_shared else cpus
            if is_shared:
                container = replace(container, resources=replace(container.resources, cpus=""))
            held = claims.held(request, pinned, mems, self.config, may_own=self._may_own(request))
            place = kept or replace(held, is_shared=is_shared)
            had = place.exclusive or (known.exclusive if self._may_own(request) else frozenset())
            if had & self._owned_beside(request, is_reserved=kept is not None):
                place = replace(place, exclusive=frozenset())
            is_kept = not had or bool(place.exclusive)
            if not is_kept:
                container = replace(container, resources=replace(container.resources, cpus=""))
            cpus, mems = place.exclusive or cpus, place.nodes or mems
            self.placements[request.key] = place
            decision = replace(decision, placement=place)
        elif qos is QosClass.BE and not self.kubelet_is_static:  # where we put it, however many CPUs that are
            container = replace(container, resources=replace(container.resources, cpus=""))
        if qos.is_managed:
            shares = container.resources.shares if qos is QosClass.BE else None
            decision = replace(decision, shares=shares, cpus=cpus or None, mems=mems or None)
        self.members[container.id] = Member(container, decision, is_adopted=True)
        return is_kept

    def _may_be_pinned(self, request: Request, cpus: frozenset[int]) -> bool:
        """Whether ``cpus`` can be somebody's own: not if nothing were left, unless kubelet has pinned them."""
        if self.machine is None or self.kubelet_is_static or not claims.is_pinned(request.pod, request.container, cpus):
            return True
        node = self.node()
        return plan.leaves_floor(node, node.exclusive | cpus)

    def _may_own(self, request: Request) -> bool:
        is_ours = request.classified.qos is QosClass.HLS and not self.kubelet_is_static
        return is_ours and plan.is_guaranteed(request.pod, request.container)

    def _reserved(self, request: Request) -> Placement | None:
        """Return the reservation with as many CPUs of its own as a container asks for, if there is one."""
        place = self.placements.get(request.key)
        if place is None or not place.exclusive or not self._may_own(request):
            return None
        return place if len(place.exclusive) == request.container.resources.whole_cpus else None

    def _owned_beside(self, request: Request, *, is_reserved: bool) -> frozenset[int]:
        """Return the CPUs of others: of living containers, and what other pods reserved if one has no reservation."""
        owned: set[int] = set()
        for member in self.members.values():
            is_owner = member.own_cpus and member.container.is_alive
            if is_owner and self._request(None, member.container).key != request.key:
                owned |= member.own_cpus
        if not is_reserved:
            owned.update(*(place.exclusive for key, place in self.placements.items() if key[0] != request.key[0]))
        return frozenset(owned)

    def _occupied(self) -> Occupied:
        alive: set[Key] = set()
        foreign: set[int] = set()
        for member in self.members.values():
            sandbox = self.sandboxes.get(member.container.pod_id)
            if sandbox is None or not member.container.is_alive:
                continue
            key = sandbox.pod.key, member.container.name
            alive.add(key)
            foreign |= claims.own(member, sandbox.pod) - self.placements.get(key, Placement()).exclusive
        return Occupied(
            dict(self.placements),
            frozenset(self.placements.keys() - alive),
            frozenset(foreign),
            self.offline,
            self.homebound,
            self.overdrawn,
        )

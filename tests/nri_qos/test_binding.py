"""NUMA policies with scope ``pod``: the first container decides for all of them."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ubproto.nri.v1alpha1 import nri_pb2

from nri_qos import cpulist
from nri_qos.classes import classify
from nri_qos.config import Config
from nri_qos.model import NUMA_KEY, OWN_KEY, SCOPE_KEY, Container, Decision, Machine, Placement, Pod, Resources
from nri_qos.plan import plan_create
from nri_qos.pools import WHOLE, Key, Node, Occupied
from nri_qos.request import Request
from tests.nri_qos import nodes
from tests.nri_qos.conftest import Plugin, container, pod
from tests.nri_qos.nodes import GIB
from ubhost.errors import Exhausted
from ubsim.runtime import CallRefused, Runtime

TWO = nodes.machine("0-3", "4-7", remote=1)
S = frozenset


def request(
    cpus: float,
    name: str = "app",
    *,
    numa: str = "single-numa-node",
    whole: float = 0,
    memory: int = 0,
    pod_memory: int = 0,
    qos: str = "HLS",
    uid: str = "uid",
    scope: str = "pod",
) -> Request:
    annotations = {OWN_KEY: qos, NUMA_KEY: numa, SCOPE_KEY: scope}
    together = Resources(shares=int(whole * 1024) or None, memory_limit=pod_memory or None)
    the_pod = Pod(uid, "web", uid, "shop", {}, annotations, f"/kubepods/pod{uid}", together)
    asked = Resources(int(cpus * 1024) or 2, int(cpus * 100_000) or None, 100_000, memory_limit=memory or None)
    return Request(the_pod, Container(f"{uid}-{name}", uid, name, resources=asked), classify(the_pod, Config()))


class Life:
    """Containers that are created one after another on a machine."""

    def __init__(self, machine: Machine = TWO, placements: Mapping[Key, Placement] | None = None) -> None:
        self.machine = machine
        self.placements: dict[Key, Placement] = dict(placements or {})
        self.stopped: set[Key] = set()

    def create(self, what: Request) -> Decision:
        decision = plan_create(what, self.node())
        assert decision.placement
        self.placements[what.key] = decision.placement
        if decision.pod:
            self.placements[what.whole] = decision.pod
        return decision

    def node(self) -> Node:
        return Node(self.machine, Config(), Occupied(dict(self.placements), frozenset(self.stopped)))


def busy(cpus: str, node: int = 0) -> dict[Key, Placement]:
    own = cpulist.parse(cpus)
    return {("other", "app"): Placement(own, S({node}), 0, 1000 * len(own))}


def test_containers_of_a_pod_share_the_node_that_has_room_for_all_of_them() -> None:
    uneven = nodes.machine("0-1", "2-7")
    life = Life(uneven, busy("2", 1))
    assert life.create(request(1, "a", whole=3)).cpus == S({3})
    assert life.create(request(2, "b", whole=3)).cpus == S({4, 5})
    by_itself = Life(uneven, busy("2", 1)).create(request(1, "a", whole=3, scope="container"))
    assert by_itself.cpus == S({0})


def test_what_is_reserved_for_a_pod_is_nobody_elses_before_its_containers_come() -> None:
    life = Life()
    life.create(request(1, "a", whole=3))
    other = life.create(request(2, uid="other"))
    assert other.mems == S({1})
    assert life.create(request(2, "b", whole=3)).mems == S({0})


def test_a_pod_takes_its_cpus_from_what_it_has_reserved_and_none_counts_twice() -> None:
    life = Life()
    life.create(request(1, "a", whole=2))
    life.create(request(1, "b", whole=2))
    assert life.create(request(4, uid="other")).mems == S({1})
    assert life.create(request(2, uid="third")).mems == S({0})


def test_a_pod_that_fits_on_no_node_is_refused_with_its_first_container() -> None:
    with pytest.raises(
        Exhausted, match="pod shop/web asks for NUMA policy single-numa-node, but no one NUMA node has 5"
    ):
        Life().create(request(1, whole=5))
    taken = busy("0-1") | {("more", "app"): Placement(cpulist.parse("4-5"), S({1}))}
    with pytest.raises(
        Exhausted, match="pod shop/web asks for NUMA policy restricted, but no one NUMA node has 3 CPUs"
    ):
        Life(placements=taken).create(request(1, whole=3, numa="restricted"))
    assert Life().create(request(1, whole=5, numa="restricted")).mems == S({0, 1})


def test_best_effort_goes_where_there_is_room() -> None:
    life = Life(placements=busy("0-2") | {("more", "app"): Placement(cpulist.parse("4-5"), S({1}))})
    first = life.create(request(1, "a", whole=3, numa="best-effort"))
    assert first.mems == S({0, 1})
    assert life.create(request(2, "b", whole=3, numa="best-effort")).placement


def test_memory_is_that_of_the_whole_pod() -> None:
    full = {("other", "app"): Placement(S(), S({0}), 10 * GIB)}
    life = Life(placements=full)
    assert life.create(request(1, "a", memory=GIB, pod_memory=8 * GIB)).mems == S({1})
    with pytest.raises(Exhausted):
        Life(placements=full).create(request(1, memory=GIB, pod_memory=20 * GIB))
    spread = Life(placements=full).create(request(1, memory=GIB, pod_memory=20 * GIB, numa="best-effort"))
    assert spread.mems == S({0, 1})


def test_where_the_runtime_does_not_tell_the_pods_sum_each_container_has_to_fit_beside_the_others() -> None:
    life = Life()
    for name in ("a", "b"):
        assert life.create(request(1, name, memory=GIB)).mems == S({0})
    with pytest.raises(
        Exhausted, match=r"container c of pod shop/web .* NUMA node 0, where its pod is, has not 3 CPUs"
    ):
        life.create(request(3, "c"))
    with pytest.raises(Exhausted, match="where its pod is, has not"):
        life.create(request(1, "c", memory=15 * GIB))
    shared = Life()
    shared.create(request(3, "a", qos="LS"))
    with pytest.raises(Exhausted):
        shared.create(request(2, "b", qos="LS"))


def test_an_init_container_does_not_count_beside_its_successors() -> None:
    life = Life()
    life.create(request(4, "init"))
    life.stopped.add(("uid", "init"))
    assert life.create(request(4, "app")).cpus == S({0, 1, 2, 3})


def test_a_pod_found_running_without_its_reservation_stays_together() -> None:
    found = {("uid", "a"): Placement(S({4, 5}), S({1}), GIB, 2000)}
    life = Life(placements=found)
    assert life.create(request(1, "b")).cpus == S({6})
    assert life.placements["uid", WHOLE].nodes == S({1})


def test_a_container_that_restarts_finds_its_cpus_and_its_pod_again() -> None:
    life = Life(placements=busy("0-1"))
    first = life.create(request(2, "a", whole=3))
    life.stopped.add(("uid", "a"))
    assert life.create(request(2, "a", whole=3)) == first


shapes = st.lists(
    st.tuples(st.sampled_from("pqr"), st.sampled_from("abc"), st.sampled_from([0, 0.5, 1, 2, 3])), max_size=12
)
machines = st.sampled_from([TWO, nodes.machine("0-3", "4-7", threads=2), nodes.machine("0-1", "2-7", "8-9")])


@given(shapes, machines, st.sampled_from(["single-numa-node", "restricted", "best-effort"]), st.booleans())
def test_a_pod_of_a_single_node_is_never_torn_and_no_cpu_is_given_twice(
    asked: list[tuple[str, str, float]], machine: Machine, numa: str, is_told: bool
) -> None:
    life = Life(machine)
    sums = {p: sum({n: c for q, n, c in asked if q == p}.values()) for p in "pqr"}
    for uid, name, cpus in asked:
        try:
            life.create(request(cpus, name, numa=numa, uid=uid, whole=sums[uid] if is_told else 0))
        except Exhausted:
            continue
        owned = [place.exclusive for place in life.placements.values()]
        assert sum(map(len, owned)) == len(S().union(*owned))
        own = [place for key, place in life.placements.items() if key[0] == uid]
        if numa == "single-numa-node":
            assert len(S().union(*(place.nodes or () for place in own))) == 1


def scoped(name: str, scope: str = "pod", sum_of_cpus: int = 0) -> nri_pb2.PodSandbox:
    made = pod(name, "HLS", guaranteed=True)
    made.annotations.update({NUMA_KEY: "single-numa-node", SCOPE_KEY: scope})
    made.linux.pod_resources.cpu.shares.value = sum_of_cpus * 1024
    return made


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_pod_is_kept_together_by_the_plugin_over_a_restart(
    is_restarted: bool, runtime: Runtime, plugin: Plugin
) -> None:
    plugin.start(config={"period": 0.1})
    runtime.register()
    small, large = scoped("small", sum_of_cpus=2), scoped("large", sum_of_cpus=3)
    for each in (small, large):
        runtime.run_pod(each)
    assert runtime.create(container(small, "a", cpus=2)).linux.resources.cpu.mems == "0"
    assert runtime.create(container(large, "a", cpus=1)).linux.resources.cpu.mems == "1"
    if is_restarted:
        plugin.stop()
        plugin.start(config={"period": 0.1})
        runtime.register()
    assert runtime.create(container(large, "b", cpus=2)).linux.resources.cpu.mems == "1"
    with pytest.raises(CallRefused, match="where its pod is, has not"):
        runtime.create(container(large, "c", cpus=2))


def test_a_scope_that_nobody_knows_is_a_typo(runtime: Runtime, plugin: Plugin) -> None:
    plugin.start()
    runtime.register()
    runtime.run_pod(typo := scoped("typo", "pods", 3))
    assert runtime.create(container(typo, cpus=1)).linux.resources.cpu.mems == "0"

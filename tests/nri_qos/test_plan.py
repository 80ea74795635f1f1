"""Who gets which CPUs and memory nodes."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_qos import cpulist, plan
from nri_qos.classes import classify
from nri_qos.config import Config, Failure
from nri_qos.model import NUMA_KEY, OWN_KEY, Container, Decision, Machine, Placement, Pod, QosClass, Resources
from nri_qos.placement import Room, choose_nodes, take_cpus
from nri_qos.plan import plan_create
from nri_qos.pools import Node, Occupied
from nri_qos.request import Request
from tests.nri_qos import nodes
from tests.nri_qos.nodes import GIB
from ubhost.errors import Exhausted

TWO = nodes.machine("0-3", "4-7", remote=1)
SMT = nodes.machine("0-3", "4-7", threads=2)
S = frozenset
GUARANTEED = "/kubepods.slice/kubepods-poduid.slice"


def request(
    qos: str,
    cpus: float = 0,
    *,
    numa: str | None = None,
    memory: int | None = None,
    parent: str = GUARANTEED,
    name: str = "app",
    pod: str = "uid",
    given: Resources | None = None,
) -> Request:
    annotations = {OWN_KEY: qos, **({NUMA_KEY: numa} if numa else {})}
    the_pod = Pod("sandbox", "web", pod, "shop", {}, annotations, parent)
    shares = int(cpus * 1024) or 2
    resources = given or Resources(shares, int(cpus * 100_000) or None, 100_000, memory_limit=memory)
    return Request(the_pod, Container("c", "sandbox", name, resources=resources), classify(the_pod, Config()))


def decide(
    what: Request, machine: Machine = TWO, config: Config | None = None, occupied: Occupied | None = None
) -> Decision:
    return plan_create(what, Node(machine, config or Config(), occupied or Occupied()))


def own(cpus: str, nodes: set[int] | None = None) -> Placement:
    return Placement(cpulist.parse(cpus), None if nodes is None else frozenset(nodes))


def test_offline_gets_the_least_weight_and_may_use_borrowed_memory() -> None:
    got = decide(request("BE", 2))
    assert (got.shares, got.cpus, got.mems) == (2, S(range(8)), S({0, 1, 2}))


def test_borrowed_memory_can_be_closed_to_offline_work() -> None:
    assert decide(request("BE"), config=Config(offline_remote=False)).mems == S({0, 1})


def test_online_memory_is_local_and_its_weight_is_what_was_requested() -> None:
    got = decide(request("LS", 0.5))
    assert (got.shares, got.cpus, got.mems) == (None, S(range(8)), S({0, 1}))


@pytest.mark.parametrize("qos", ["system", "undeclared", "lS"])
def test_others_are_left_alone(qos: str) -> None:
    assert decide(request(qos, 2)).is_empty


def test_whole_cpus_of_a_guaranteed_hls_pod_are_its_own_on_one_node() -> None:
    got = decide(request("HLS", 2))
    assert got.cpus == S({0, 1})
    assert got.mems == S({0})
    assert got.placement
    assert got.placement.exclusive == S({0, 1})


@pytest.mark.parametrize(
    "what",
    [
        request("LS", 2),
        request("HLS", 1.5),
        request("HLS", 2, parent="/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poduid.slice"),
        request("HLS", given=Resources(2048, 400_000, 100_000)),
    ],
)
def test_all_other_online_containers_share(what: Request) -> None:
    got = decide(what, occupied=Occupied({("other", "app"): own("0-1")}))
    assert got.placement
    assert not got.placement.exclusive
    assert got.cpus
    assert not got.cpus & {0, 1}


def test_nobody_else_runs_on_exclusive_cpus() -> None:
    taken = Occupied({("other", "app"): own("0-1")})
    for qos in ("HLS", "LS", "BE", "undeclared", "system"):
        got = decide(request(qos, 1), occupied=taken)
        assert got.cpus
        assert not got.cpus & {0, 1}


def test_offline_work_stays_off_the_siblings_of_exclusive_cpus() -> None:
    got = decide(request("BE"), machine=SMT, occupied=Occupied({("other", "app"): own("0")}))
    assert got.cpus == S({2, 3, 4, 5, 6, 7})


def test_exclusive_cpus_are_whole_cores_first() -> None:
    got = decide(request("HLS", 2), machine=SMT, occupied=Occupied({("other", "app"): own("0")}))
    assert got.cpus == S({2, 3})


def test_offline_work_is_put_where_the_loop_holds_it() -> None:
    assert decide(request("BE"), occupied=Occupied(offline=frozenset(S({6, 7})))).cpus == S({6, 7})


def test_exclusive_cpus_never_take_the_floor_of_offline_work() -> None:
    assert decide(request("HLS", 7), config=Config(floor=1)).cpus == S({0, 1, 2, 3, 4, 5, 6})
    got = decide(request("HLS", 7), config=Config(floor=2))
    assert got.placement
    assert not got.placement.exclusive
    with pytest.raises(Exhausted, match="shop/web: no 7 CPUs"):
        decide(request("HLS", 7), config=Config(floor=2, failure=Failure.STRICT))


def test_a_restarted_container_finds_its_cpus_again() -> None:
    before = {("uid", "app"): own("6-7", {1}), ("other", "app"): own("0-1")}
    got = decide(request("HLS", 2), occupied=Occupied(before, stopped=frozenset({("uid", "app")})))
    assert (got.cpus, got.mems) == (S({6, 7}), S({1}))


def test_a_pod_passes_the_cpus_of_its_init_container_on() -> None:
    before = {("uid", "init"): own("4-5", {1})}
    got = decide(request("HLS", 2, numa="none"), occupied=Occupied(before, stopped=frozenset({("uid", "init")})))
    assert got.cpus == S({4, 5})
    running = decide(request("HLS", 2, numa="none"), occupied=Occupied(before))
    assert running.cpus
    assert not running.cpus & {4, 5}


def test_another_pod_never_gets_what_a_stopped_container_holds() -> None:
    before = Occupied({("other", "app"): own("0-1")}, stopped=frozenset({("other", "app")}))
    got = decide(request("HLS", 2), occupied=before)
    assert got.cpus
    assert not got.cpus & {0, 1}


def test_what_somebody_else_set_is_left_as_it_is() -> None:
    got = decide(request("HLS", given=Resources(2048, 200_000, 100_000, cpus="4-5")))
    assert (got.cpus, got.mems) == (None, S({1}))
    assert any("set by somebody else" in reason for reason in got.reasons)
    assert decide(request("BE", given=Resources(1024, cpus="1", mems="0"))) == Decision(
        QosClass.BE,
        (
            f"{OWN_KEY}=BE", "least weight", "CPUs left by online work: 0-7", "memory: node 0-2",
            "cpus 1 set by somebody else", "mems 0 set by somebody else",
        ),
        shares=2,
    )  # fmt: skip


def test_cpus_that_kubelet_pinned_are_nobody_elses() -> None:
    for qos in ("BE", "LS", "HLS"):
        got = decide(request(qos, 2), occupied=Occupied(foreign=frozenset({4, 5})))
        assert got.cpus
        assert not got.cpus & {4, 5}


def test_reserved_and_isolated_cpus_are_handed_to_nobody() -> None:
    machine = nodes.machine("0-7", isolated="6-7")
    for qos in ("BE", "LS", "HLS"):
        got = decide(request(qos, 2), machine=machine, config=Config(reserved="0-1"))
        assert got.cpus
        assert got.cpus <= {2, 3, 4, 5}
    assert decide(request("BE"), machine=machine, config=Config(available="5-7,99")).cpus == S({5, 6, 7})


def test_available_cpus_that_are_all_offline_do_not_leave_anybody_without_cpus() -> None:
    assert decide(request("BE"), config=Config(available="90-99")).cpus == S(range(8))


@pytest.mark.parametrize(
    ("numa", "cpus", "expected"),
    [
        ("none", 2, {0, 1}),
        ("best-effort", 2, {0}),
        ("best-effort", 6, {0, 1}),
        ("restricted", 2, {0}),
        ("restricted", 6, {0, 1}),
        ("single-numa-node", 4, {0}),
    ],
)
def test_numa_policies_choose_the_fewest_nodes(numa: str, cpus: int, expected: set[int]) -> None:
    assert decide(request("HLS", cpus, numa=numa)).mems == S(expected)


def test_single_numa_node_refuses_what_no_node_has() -> None:
    with pytest.raises(Exhausted, match="app of pod shop/web asks for NUMA policy single-numa-node, but no one"):
        decide(request("HLS", 5, numa="single-numa-node"))


def test_restricted_refuses_more_nodes_than_an_empty_machine_needs() -> None:
    taken = Occupied({("a", "x"): own("0-1"), ("b", "x"): own("4-5")})
    with pytest.raises(Exhausted):
        decide(request("HLS", 3, numa="restricted"), occupied=taken)
    assert decide(request("HLS", 3, numa="best-effort"), occupied=taken).mems == S({0, 1})


def test_a_node_without_room_for_the_memory_is_not_chosen() -> None:
    taken = Occupied({("a", "x"): Placement(frozenset(), frozenset({0}), 10 * GIB)})
    assert decide(request("LS", 1, numa="single-numa-node", memory=8 * GIB), occupied=taken).mems == S({1})
    assert decide(request("LS", 1, numa="best-effort", memory=20 * GIB), occupied=taken).mems == S({0, 1})
    with pytest.raises(Exhausted):
        decide(request("LS", 1, numa="single-numa-node", memory=20 * GIB), occupied=taken)


def test_bound_memory_is_widened_rather_than_too_small() -> None:
    assert decide(request("HLS", 2, memory=40 * GIB)).mems == S({0, 1})


def test_containers_without_requests_are_spread() -> None:
    placements: dict[tuple[str, str], Placement] = {}
    for number in range(20):
        got = decide(request("LS", numa="best-effort", pod=f"p{number}"), occupied=Occupied(placements))
        assert got.placement
        placements[f"p{number}", "app"] = got.placement
    assert [sum(place.nodes == S({node}) for place in placements.values()) for node in (0, 1)] == [10, 10]


def test_a_cpuless_node_nearby_is_local_memory_and_a_listed_one_is_borrowed() -> None:
    near = nodes.machine("0-3", remote=1)
    assert decide(request("LS"), machine=near, config=Config(remote_distance=100)).mems == S({0, 1})
    assert decide(request("LS"), machine=TWO, config=Config(remote_nodes="1")).mems == S({0, 2})


requests = st.builds(
    request,
    st.sampled_from(["HLS", "LS", "BE", "system", "none"]),
    st.sampled_from([0, 0.5, 1, 2, 3, 5]),
    numa=st.sampled_from([None, "none", "best-effort", "restricted", "single-numa-node"]),
    memory=st.sampled_from([None, GIB, 20 * GIB]),
    name=st.sampled_from(["a", "b"]),
    pod=st.sampled_from(["p", "q", "r", "s"]),
)
machines = st.sampled_from(
    [TWO, SMT, nodes.machine("0"), nodes.machine("0-1,4-5", "2-3,6-7", threads=2, isolated="7"), nodes.machine("0-15")]
)
configs = st.builds(
    Config,
    floor=st.sampled_from([0.5, 1, 3]),
    reserved=st.sampled_from([None, "0", "0-15"]),
    available=st.sampled_from([None, "0-5", "40"]),
)


@given(st.lists(requests, max_size=12), machines, configs)
def test_no_cpu_is_handed_out_twice_and_no_set_is_ever_empty(
    asked: list[Request], machine: Machine, config: Config
) -> None:
    placements: dict[tuple[str, str], Placement] = {}
    for what in asked:
        node = Node(machine, config, Occupied(dict(placements)))
        try:
            got = plan_create(what, node)
        except Exhausted:
            continue
        assert got.cpus is None or got.cpus <= machine.online
        assert got.cpus is None or got.cpus
        assert got.mems is None or got.mems <= node.with_memory
        assert got.mems is None or got.mems
        others = [place for key, place in placements.items() if key != what.key]
        taken = frozenset[int]().union(*(place.exclusive for place in others))
        assert not got.cpus or not taken & got.cpus or not got.cpus - taken
        if got.placement:
            assert not got.placement.exclusive & taken
            placements[what.key] = got.placement
        assert_offline_keeps_its_floor(Node(machine, config, Occupied(dict(placements))), placements)


def assert_offline_keeps_its_floor(node: Node, placements: Mapping[tuple[str, str], Placement]) -> None:
    if any(place.exclusive for place in placements.values()):
        assert len(node.pool - node.machine.cores(node.exclusive)) >= min(1, node.config.floor)


def test_nodes_of_the_devices_are_preferred() -> None:
    room = Room({0: 4, 1: 4}, {0: GIB, 1: GIB}, wanted=frozenset({1}))
    assert choose_nodes(TWO, room, 2, 0) == S({1})


def test_the_tightest_node_that_fits_is_broken_first() -> None:
    machine = nodes.machine("0-3", "4-7", threads=2)
    free = frozenset({0, 1, 2, 3, 6, 7})
    assert take_cpus(machine, free, 2) == S({6, 7})
    assert take_cpus(machine, free, 3) == S({0, 1, 2}) or take_cpus(machine, free, 3) == S({6, 7, 0})
    assert take_cpus(machine, frozenset(S({1, 2, 3})), 1) == S({1})
    assert take_cpus(machine, free, 7) == frozenset()


def test_guaranteed_is_told_by_the_cgroup_or_the_oom_score_or_the_limits() -> None:
    def pod(parent: str) -> Pod:
        return Pod("i", cgroup_parent=parent)

    plain, marked = Container("c", "i"), Container("c", "i", oom_score_adj=-997)
    assert plan.is_guaranteed(pod("/kubepods/poduid"), plain)
    assert plan.is_guaranteed(pod("kubelet-kubepods-poduid.slice"), plain)
    assert not plan.is_guaranteed(pod("/kubepods/burstable/poduid"), marked)
    assert not plan.is_guaranteed(pod(""), plain)
    assert plan.is_guaranteed(pod(""), marked)
    limited = Container("c", "i", resources=Resources(1024, 100_000, 100_000, memory_limit=1))
    assert plan.is_guaranteed(pod("/somewhere"), limited)
    assert not plan.is_guaranteed(pod(""), Container("c", "i", resources=Resources(1024, 100_000, 100_000)))
    assert not plan.is_guaranteed(pod(""), Container("c", "i", oom_score_adj=500, resources=limited.resources))
    inside = Container(
        "c", "i", cgroups_path="kubepods-burstable-pod1.slice:cri-containerd:c", resources=limited.resources
    )
    assert not plan.is_guaranteed(pod(""), inside)

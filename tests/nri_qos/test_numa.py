"""Machines that are not two equal nodes: many nodes, borrowed and near memory, holes, threads, what comes and goes."""

import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from ubproto.nri.v1alpha1 import nri_pb2

from nri_qos import cpulist
from nri_qos.config import Config
from nri_qos.model import NUMA_KEY, Machine, Placement
from nri_qos.placement import Room, choose_nodes
from nri_qos.pools import Node, Occupied
from tests.nri_qos import nodes
from tests.nri_qos.cgroups import Tree
from tests.nri_qos.conftest import Plugin, container, cpu, pod, run, start_pod, until
from tests.nri_qos.nodes import GIB
from tests.nri_qos.test_plan import decide, request
from ubhost.errors import Exhausted
from ubhost.model import NumaNode
from ubsim.runtime import CallRefused, Runtime

S = frozenset
FORTY = nodes.machine(*(f"{n * 4}-{n * 4 + 3}" for n in range(40)))


def made(*numa: NumaNode, offline: str = "") -> Machine:
    cpus = S(cpu for node in numa for cpu in node.cpus)
    return Machine(cpus - cpulist.parse(offline), numa)


def numa(id_: int, cpus: str, memory: int = 16 * GIB, **distances: int) -> NumaNode:
    """``distances`` by "to" and the node's number."""
    far = {int(key.removeprefix("to")): value for key, value in distances.items()}
    return NumaNode(id_, tuple(sorted(cpulist.parse(cpus))), memory, memory, {id_: 10, **far})


@pytest.mark.parametrize(("cpus", "memory", "expected"), [(159, 39, 40), (80, 1, 20), (1, 40, 40), (4, 1, 1)])
def test_the_search_among_forty_nodes_is_short(cpus: int, memory: int, expected: int) -> None:
    """kubelet's own tries all sets, and stalls. ``make bench-nri`` has the milliseconds."""
    room = Room(dict.fromkeys(range(40), 4), dict.fromkeys(range(40), GIB))
    began = time.process_time()
    assert len(choose_nodes(FORTY, room, cpus, memory * GIB)) == expected
    assert time.process_time() - began < 1


def test_among_forty_nodes_those_with_room_that_are_near_one_another_are_taken() -> None:
    room = Room({n: 4 if n in (7, 9, 30) else 0 for n in range(40)}, dict.fromkeys(range(40), GIB))
    far = replace(FORTY.nodes[30], distances=dict.fromkeys(range(40), 30) | {30: 10})
    machine = replace(FORTY, nodes=(*FORTY.nodes[:30], far, *FORTY.nodes[31:]))
    assert choose_nodes(machine, room, 8, 0) == S({7, 9})
    assert choose_nodes(machine, room, 13, 0) == S()


def test_of_asymmetric_distances_the_longer_one_counts() -> None:
    machine = made(numa(0, "0-1", to1=12, to2=20), numa(1, "2-3", to0=90, to2=20), numa(2, "4-5", to0=20, to1=20))
    room = Room({0: 2, 1: 2, 2: 2}, dict.fromkeys(range(3), GIB))
    assert choose_nodes(machine, room, 4, 0) == S({0, 2})  # 0 -> 1 is short, 1 -> 0 is not


def test_ids_may_have_holes() -> None:
    machine = made(numa(0, "0-1", to8=20), numa(8, "64-65,200-201", to0=20))
    assert decide(request("HLS", 4), machine=machine).cpus == S({64, 65, 200, 201})


def test_cpus_of_a_node_without_memory_go_with_the_memory_that_is_nearest() -> None:
    """An explicit list, too: a cpuset of a node without memory would mean the memory of all."""
    machine = made(numa(0, "0-3", to1=40, to2=30), numa(1, "4-5", 0, to0=40, to2=20), numa(2, "6-9", to0=30, to1=20))
    taken = Occupied({("a", "x"): Placement(S({6, 7}), S({2})), ("b", "x"): Placement(S({0, 1}), S({0}))})
    got = decide(request("HLS", 2), machine=machine, occupied=taken)
    assert (got.cpus, got.mems) == (S({4, 5}), S({2}))
    assert got.placement
    assert got.placement.nodes == S({1, 2})


def test_near_memory_without_cpus_helps_a_container_that_needs_much() -> None:
    machine = made(numa(0, "0-3", to1=21, to2=15), numa(1, "4-7", to0=21, to2=40), numa(2, "", to0=15, to1=40))
    assert decide(request("HLS", 2, memory=GIB), machine=machine).mems == S({0})
    assert decide(request("HLS", 2, memory=20 * GIB), machine=machine).mems == S({0, 1})
    much = request("HLS", 6, memory=40 * GIB)
    assert decide(much, machine=machine).mems == S({0, 1, 2})


def test_memory_that_others_were_promised_is_not_there_twice() -> None:
    """(E15)"""
    promised = Occupied({("a", "x"): Placement(S(), S({0, 1}), 24 * GIB)})
    with pytest.raises(Exhausted):
        decide(request("LS", 1, numa="single-numa-node", memory=6 * GIB), occupied=promised)
    assert decide(request("LS", 1, numa="best-effort", memory=6 * GIB), occupied=promised).mems == S({0, 1})


def test_free_memory_counts_and_not_only_what_was_promised() -> None:
    """(E15)"""
    machine = made(replace(numa(0, "0-3", to1=20), memory_free=GIB), numa(1, "4-7", to0=20))
    assert decide(request("LS", 1, numa="single-numa-node", memory=2 * GIB), machine=machine).mems == S({1})


def test_the_threads_of_a_core_with_an_owner_are_nobodys_in_the_background() -> None:
    smt = nodes.machine("0-3", "4-7", threads=4)
    got = decide(request("BE"), machine=smt, occupied=Occupied({("a", "x"): Placement(S({1}), S({0}))}))
    assert got.cpus == S({4, 5, 6, 7})
    pinned = Node(smt, Config(), Occupied(foreign=S({6})))
    assert pinned.offline_room == S({0, 1, 2, 3})


def test_whole_cores_are_taken_even_where_their_threads_have_distant_numbers() -> None:
    siblings = {cpu: S({cpu % 4, cpu % 4 + 4}) for cpu in range(8)}
    machine = replace(nodes.machine("0-7"), siblings=siblings)
    assert decide(request("HLS", 2), machine=machine).cpus == S({0, 4})
    taken = Occupied({("a", "x"): Placement(S({0}), None)})
    assert decide(request("HLS", 4), machine=machine, occupied=taken).cpus == S({1, 5, 2, 6})


def test_where_thread_siblings_are_off_line_the_core_is_whole_without_them() -> None:
    machine = replace(nodes.machine("0-7", threads=2), online=S({0, 2, 4, 6, 7}))
    assert decide(request("HLS", 2), machine=machine).cpus in (S({0, 2}), S({0, 4}), S({6, 7}))


def come(machine: Machine, root: Path) -> None:
    """Let the machine be another from now on; nodes that have gone take their files with them."""
    nodes.write(machine, root)
    for folder in (root / "sys/devices/system/node").glob("node*"):
        if int(folder.name.removeprefix("node")) not in {node.id for node in machine.nodes}:
            shutil.rmtree(folder)


def bound(name: str, policy: str) -> nri_pb2.PodSandbox:
    made = pod(name, "LS")
    made.annotations[NUMA_KEY] = policy
    return made


def test_a_borrowed_node_that_is_returned_is_taken_from_everybody(
    runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    """(E13, E14)"""
    plugin.start(config={"period": 0.1})
    runtime.register()
    (_, web), (_, batch) = (start_pod(runtime, tree, name, qos, 1) for name, qos in (("web", "LS"), ("batch", "BE")))
    until(lambda: (tree.read(web, "cpuset.mems"), tree.read(batch, "cpuset.mems")) == ("0-1", "0-2"))
    come(nodes.machine("0-3", "4-7"), root)
    until(lambda: tree.read(batch, "cpuset.mems") == "0-1")
    assert tree.read(web, "cpuset.mems") == "0-1"
    late = pod("late", "BE")
    runtime.run_pod(late)
    assert runtime.create(container(late)).linux.resources.cpu.mems == "0-1"
    come(nodes.machine("0-3", "4-7", remote=2), root)
    until(lambda: tree.read(batch, "cpuset.mems") == "0-3")
    assert tree.read(web, "cpuset.mems") == "0-1"
    assert not plugin.lines("a cgroup file cannot be written")


def test_a_container_bound_to_a_node_that_goes_away_gets_what_is_left(
    runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    """(E14)"""
    come(nodes.machine("0-3", "4-7", "8-11"), root)
    plugin.start(config={"period": 0.1})
    runtime.register()
    folders = [run(runtime, tree, bound(name, "best-effort"), 1)[1] for name in ("first", "second", "third")]
    until(lambda: [tree.read(folder, "cpuset.mems") for folder in folders] == ["0", "1", "2"])
    come(nodes.machine("0-3", "4-7"), root)
    until(lambda: tree.read(folders[2], "cpuset.mems") == "0-1")
    until(lambda: cpulist.parse(tree.read(folders[2], "cpuset.cpus")) <= S(range(8)))


def test_cpus_that_come_on_line_are_used_and_isolated_ones_never(
    runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    """(E4, E5)"""
    come(replace(nodes.machine("0-3", "4-7", isolated="3"), online=S({0, 1, 2, 3, 4})), root)
    plugin.start(config={"period": 0.1, "threshold": 1})
    runtime.register()
    _, web = start_pod(runtime, tree, "web", "LS", 1)
    until(lambda: tree.read(web, "cpuset.cpus") == "0-2,4")
    come(nodes.machine("0-3", "4-7", isolated="3"), root)
    until(lambda: tree.read(web, "cpuset.cpus") == "0-2,4-7")


def test_cpus_that_go_offline_are_given_to_nobody(runtime: Runtime, plugin: Plugin, tree: Tree, root: Path) -> None:
    """(E4)"""
    plugin.start(config={"period": 0.1, "threshold": 1})
    runtime.register()
    nodes.put(root / "sys/devices/system/cpu/online", "0-6")
    plugin.wait_for("CPUs and NUMA nodes", 2)
    batch = pod("batch", "BE")
    runtime.run_pod(batch)
    assert cpu(runtime.create(container(batch)))[1] == "0-6"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_container_whose_own_cpus_go_offline_gets_others(
    is_restarted: bool, runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    """(E4)"""
    plugin.start(config={"period": 0.1})
    runtime.register()
    _, folder = start_pod(runtime, tree, "db", "HLS", 2, guaranteed=True)
    assert tree.read(folder, "cpuset.cpus") == "0-1"
    if is_restarted:
        plugin.stop(signal.SIGKILL)
        plugin.start(config={"period": 0.1})
        runtime.register()
    nodes.put(root / "sys/devices/system/cpu/online", "0,2-7")
    until(lambda: tree.read(folder, "cpuset.cpus") == "0,2")


def test_memory_that_fills_up_is_seen_by_the_next_container(runtime: Runtime, plugin: Plugin, root: Path) -> None:
    """(E15, E17)"""
    plugin.start(config={"period": 0.1})
    runtime.register()
    tight = bound("tight", "single-numa-node")
    runtime.run_pod(tight)
    asked = container(tight, cpus=1)
    asked.linux.resources.memory.limit.value = 20 * GIB
    with pytest.raises(CallRefused, match=f"{20 * GIB} bytes of memory"):
        runtime.create(asked)
    come(nodes.machine("0-3", "4-7", memory=32 * GIB), root)
    plugin.wait_for("CPUs and NUMA nodes", 2)
    assert runtime.create(asked).linux.resources.cpu.mems == "0"

"""The plugin process over a tree of cgroups: squeezing, giving back, repairing.

Letters and numbers in parentheses are the faults of reference/nri.md section 5.
"""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ubproto.nri.v1alpha1 import nri_pb2

from nri_qos import cpulist, paths
from nri_qos.config import Config
from nri_qos.files import Hierarchy
from nri_qos.loop import Loop
from nri_qos.world import World
from nri_qos.writer import Writer
from tests.nri_qos.cgroups import DEFAULTS, Load, Tree
from tests.nri_qos.conftest import Plugin, come_round, container, pod, restore, run, run_before, start_pod, until
from tests.nri_qos.nodes import put
from ubsim.runtime import Runtime

PERIOD = {"period": 0.1}


def quota(tree: Tree, folder: str) -> float:
    words = tree.read(folder, "cpu.max").split()
    return float("inf") if words[0] == "max" else int(words[0]) / int(words[1])


def cpus(tree: Tree, folder: str) -> frozenset[int]:
    return cpulist.parse(tree.read(folder, "cpuset.cpus"))


def test_offline_work_is_squeezed_at_once_and_given_back_slowly(
    runtime: Runtime, plugin: Plugin, tree: Tree, load: Load
) -> None:
    plugin.start(config=PERIOD)
    runtime.register()
    web, _ = start_pod(runtime, tree, "web", "LS", 4)
    batch, job = start_pod(runtime, tree, "batch", "BE")
    load.cpus = {"": 0.0, web: 0.0, batch: 0.0}
    load.start()
    until(lambda: 5 < quota(tree, batch) <= 6)  # 0.75 of 8 CPUs
    until(lambda: len(cpus(tree, job)) == 6)
    load.cpus |= {"": 5.0, web: 4.0, batch: 1.0}
    until(lambda: quota(tree, batch) <= 1.3, tell=lambda: plugin.log.read_text())
    until(lambda: 1 <= len(cpus(tree, job)) <= 2)
    assert quota(tree, batch) >= 1
    began = time.monotonic()
    load.cpus |= {"": 1.0, web: 0.0}
    until(lambda: quota(tree, batch) > 5)
    assert time.monotonic() - began > 0.3
    first, *later = plugin.lines("offline work squeezed")
    assert (first["before"], first["because"]) == (None, "start")
    assert {line["because"] for line in later} == {"online work needs more"}


def test_online_work_that_is_throttled_or_waits_halves_offline_work(
    runtime: Runtime, plugin: Plugin, tree: Tree
) -> None:
    plugin.start(config=PERIOD)
    runtime.register()
    web, _ = start_pod(runtime, tree, "web", "LS", 1)
    batch, _ = start_pod(runtime, tree, "batch", "BE")
    until(lambda: quota(tree, batch) == 6)
    tree.spend(web, 0, throttles=3)
    plugin.wait_for("offline work squeezed", 2)
    tree.spend(web, 0, waited=10_000_000)
    plugin.wait_for("offline work squeezed", 3)
    halved = plugin.lines("offline work squeezed")[1:]
    assert [line["because"] for line in halved] == ["online work is throttled", "online work waits"]
    assert all(line["cpus"] == line["before"] / 2 for line in halved)


def test_host_processes_count_as_need(runtime: Runtime, plugin: Plugin, tree: Tree, load: Load) -> None:
    """(F9)"""
    plugin.start(config=PERIOD)
    runtime.register()
    batch, _ = start_pod(runtime, tree, "batch", "BE")
    load.cpus = {"": 4.0, batch: 0.0}
    load.start()
    until(lambda: 1.5 < quota(tree, batch) < 2.5)


def test_a_tree_that_only_tells_of_pods_is_worked_with(
    runtime: Runtime, plugin: Plugin, tree: Tree, load: Load
) -> None:
    (tree.root / "cpu.stat").unlink()
    plugin.start(config=PERIOD)
    runtime.register()
    web, _ = start_pod(runtime, tree, "web", "LS", 1)
    batch, _ = start_pod(runtime, tree, "batch", "BE")
    load.cpus = {web: 2.0, batch: 0.5}
    load.start()
    until(lambda: 3 < quota(tree, batch) < 4)


def test_counters_that_vanish_make_it_careful(runtime: Runtime, plugin: Plugin, tree: Tree, load: Load) -> None:
    """(F1)"""
    plugin.start(config=PERIOD)
    runtime.register()
    web, _ = start_pod(runtime, tree, "web", "LS", 1)
    batch, _ = start_pod(runtime, tree, "batch", "BE")
    load.cpus = {"": 0.0, batch: 0.0}
    load.start()
    until(lambda: 5 <= quota(tree, batch) <= 6)
    (tree.root / web / "cpu.stat").unlink()
    until(lambda: quota(tree, batch) == 1.0)
    tree.stat(web, 0)
    until(lambda: quota(tree, batch) > 4)


def test_a_pod_without_a_running_container_is_not_squeezed(runtime: Runtime, plugin: Plugin, tree: Tree) -> None:
    """(C19)"""
    plugin.start(config=PERIOD)
    runtime.register()
    made = pod("batch", "BE")
    folder = tree.pod(made)
    before = tree.everything()
    runtime.run_pod(made)
    other, _ = start_pod(runtime, tree, "other", "BE")
    come_round(tree, other)
    assert {path: text for path, text in tree.everything().items() if path in before} == before
    assert quota(tree, folder) == float("inf")


def test_a_burst_that_somebody_set_does_not_keep_the_quota_from_falling(
    runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    """The kernel refuses a quota below the burst."""
    plugin.start(config=PERIOD)
    runtime.register()
    batch, _ = start_pod(runtime, tree, "batch", "BE", files={"cpu.max.burst": "400000"})
    until(lambda: quota(tree, batch) < 9)
    assert tree.read(batch, "cpu.max.burst") == "0"
    plugin.stop(signal.SIGKILL)
    restore(root)
    assert tree.read(batch, "cpu.max.burst") == "400000"


def test_a_pod_is_never_given_more_than_its_own_limit(runtime: Runtime, plugin: Plugin, tree: Tree) -> None:
    """A limit of the pod as a whole is in no container's cgroup: what is written to the pod's would lift it."""
    plugin.start(config=PERIOD)
    runtime.register()
    limited = pod("limited", "BE")
    limited.linux.pod_resources.cpu.quota.value, limited.linux.pod_resources.cpu.period.value = 50_000, 100_000
    folder, _ = run(runtime, tree, limited, files={"cpu.max": "50000 100000"})
    mixed = pod("mixed", "BE")  # one of its containers has a limit, which kubelet tells as the pod's
    mixed.linux.pod_resources.cpu.CopyFrom(limited.linux.pod_resources.cpu)
    free, _ = run(runtime, tree, mixed, cpus=0.5)
    until(lambda: 0.5 < quota(tree, free) < 9)
    check_every(0.1, lambda: quota(tree, folder) <= 0.5, 10)
    resized = nri_pb2.UpdatePodSandboxRequest(pod=limited)
    resized.linux_resources.cpu.quota.value = 100_000
    runtime.peer.call("UpdatePodSandbox", resized, nri_pb2.Empty)
    until(lambda: quota(tree, folder) == 1.0)
    assert quota(tree, free) > 1.0


@pytest.mark.parametrize("parent", ["system.slice", "/k8s.io", "kubepods-besteffort.slice"])
def test_what_is_done_to_a_pod_is_not_done_to_those_beside_it(
    parent: str, runtime: Runtime, plugin: Plugin, tree: Tree
) -> None:
    """Whoever makes pods without kubelet can put them into one cgroup with others."""
    plugin.start(config=PERIOD)
    runtime.register()
    lone = pod("lone", "BE")
    lone.linux.cgroup_parent = parent
    asked = container(lone)
    beside = paths.of_container(asked.linux.cgroups_path)
    assert beside is not None
    shared = beside.rpartition("/")[0]
    tree.add(shared)
    tree.add(f"{shared}/sshd.service")
    runtime.run_pod(lone)
    inner = tree.container(asked, runtime.create(asked))
    runtime.start(asked.id)
    batch, _ = start_pod(runtime, tree, "batch", "BE")
    until(lambda: quota(tree, batch) < 9)
    come_round(tree, batch)
    assert cpus(tree, inner)
    for folder in (shared, f"{shared}/sshd.service"):
        assert {file: tree.read(folder, file) for file in DEFAULTS} == DEFAULTS


def test_everybody_leaves_the_cpus_that_become_somebodys_own(runtime: Runtime, plugin: Plugin, tree: Tree) -> None:
    plugin.start(config=PERIOD)
    runtime.register()
    _, web = start_pod(runtime, tree, "web", "LS", 1)
    _, plain = start_pod(runtime, tree, "plain", None)
    _, batch = start_pod(runtime, tree, "batch", "BE")
    assert tree.read(plain, "cpuset.cpus") == ""
    _, db = start_pod(runtime, tree, "db", "HLS", 2, guaranteed=True)
    own = cpus(tree, db)
    assert len(own) == 2
    for folder in (web, plain, batch):
        until(lambda folder=folder: bool(cpus(tree, folder)) and not cpus(tree, folder) & own)  # type: ignore[misc]
    runtime.stop("db-app-0")
    runtime.stop_pod("sandbox-db")
    until(lambda: tree.read(plain, "cpuset.cpus") == "")
    until(lambda: own <= cpus(tree, web))


def test_a_pod_stays_on_the_cpus_that_it_may_name(runtime: Runtime, plugin: Plugin, tree: Tree) -> None:
    plugin.start(config={**PERIOD, "cpu_list_namespaces": ["shop"]})
    runtime.register()
    _, web = run(runtime, tree, pod("web", "LS", guaranteed=False, **{"qos.unifiedbus.com/cpus": "1-2"}), 1)
    assert tree.read(web, "cpuset.cpus") == "1-2"
    _, db = start_pod(runtime, tree, "db", "HLS", 2, guaranteed=True)
    assert tree.read(db, "cpuset.cpus") == "0-1"
    until(lambda: tree.read(web, "cpuset.cpus") == "2")


def test_a_container_that_ran_before_the_plugin_is_taken_into_account(
    runtime: Runtime, plugin: Plugin, tree: Tree
) -> None:
    """(B3, A16)"""
    made = pod("batch", "BE")
    folder, inner = run_before(runtime, tree, made, container(made, cpus=1))
    before = tree.everything()
    plugin.start(config={**PERIOD, "on_exit": "restore"})
    runtime.register()
    until(lambda: tree.read(inner, "cpu.weight") == "1")
    until(lambda: tree.read(inner, "cpuset.mems") == "0-2")
    until(lambda: tree.read(folder, "cpu.weight") == "1")
    assert plugin.stop() == 0
    assert tree.everything() == before


def test_a_container_that_nobody_announced_is_found_by_its_cgroup(runtime: Runtime, plugin: Plugin, tree: Tree) -> None:
    """(B3) It was created between the snapshot for Synchronize and the start of events."""
    made = pod("batch", "BE")
    tree.pod(made)
    runtime.pods[made.id] = made
    hidden = container(made, "hidden")
    folder = tree.container(hidden)
    sandbox = f"{folder.rpartition('/')[0]}/cri-containerd-{made.id}.scope"
    tree.add(sandbox)
    plugin.start(config=PERIOD)
    runtime.register()
    until(lambda: tree.read(folder, "cpu.weight") == "1" and tree.read(folder, "cpuset.mems") == "0-2")
    assert tree.read(sandbox, "cpu.weight") == "100"
    plugin.wait_for("containers run that the runtime did not announce")
    stop = nri_pb2.ContainerRequest(pod=made, container=hidden)
    runtime.peer.call("StopContainer", stop, nri_pb2.Empty)


def test_online_weights_are_left_as_the_runtime_made_them(runtime: Runtime, plugin: Plugin, tree: Tree) -> None:
    """(D1) Runtimes make 39 or 100 of 1024 shares; neither is ours to judge."""
    plugin.start(config=PERIOD)
    runtime.register()
    for name, weight in (("old", "39"), ("new", "100")):
        folder, inner = start_pod(runtime, tree, name, "LS", 1)
        tree.write(inner, "cpu.weight", weight)
        tree.write(folder, "cpu.weight", weight)
    before = {path: text for path, text in tree.everything().items() if path.endswith("cpu.weight")}
    batch, _ = start_pod(runtime, tree, "batch", "BE")
    come_round(tree, batch)
    assert {path: tree.everything()[path] for path in before} == before
    assert set(before.values()) == {"39", "100"}


def test_drift_is_repaired(runtime: Runtime, plugin: Plugin, tree: Tree) -> None:
    plugin.start(config=PERIOD)
    runtime.register()
    folder, inner = start_pod(runtime, tree, "batch", "BE")
    until(lambda: tree.read(folder, "cpu.weight") == "1")
    tree.write(folder, "cpu.weight", "100")
    tree.write(inner, "cpuset.mems", "2")
    until(lambda: tree.read(folder, "cpu.weight") == "1" and tree.read(inner, "cpuset.mems") == "0-2")


def test_what_the_runtime_wrote_in_an_update_is_looked_at_at_once(
    runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    """(C8)"""
    plugin.start(config={"period": 60})
    runtime.register()
    _, inner = start_pod(runtime, tree, "batch", "BE")
    until(lambda: inner in (root / "run/ub-node/nri-qos.journal").read_text())  # it has been looked at as it started
    tree.write(inner, "cpu.weight", "39")
    runtime.update("batch-app-0", nri_pb2.LinuxResources(memory=nri_pb2.LinuxMemory()))
    until(lambda: tree.read(inner, "cpu.weight") == "1")


def test_a_cgroup_that_vanishes_is_quietly_forgotten(runtime: Runtime, plugin: Plugin, tree: Tree) -> None:
    """(D12)"""
    plugin.start(config=PERIOD)
    runtime.register()
    folder, inner = start_pod(runtime, tree, "batch", "BE")
    other, _ = start_pod(runtime, tree, "other", "BE")
    until(lambda: tree.read(folder, "cpu.weight") == "1")
    tree.remove(folder)
    tree.write(other, "cpu.weight", "9")
    until(lambda: tree.read(other, "cpu.weight") == "1")
    assert not (tree.root / inner).exists()
    assert not [line for line in plugin.log.read_text().splitlines() if '"level": "error"' in line]


def test_a_borrowed_node_that_appears_is_for_offline_work_only(
    runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    """(E13, E14)"""
    plugin.start(config=PERIOD)
    runtime.register()
    _, web = start_pod(runtime, tree, "web", "LS", 1)
    _, batch = start_pod(runtime, tree, "batch", "BE")
    node = root / "sys/devices/system/node"
    (node / "node3").mkdir()
    put(node / "node3/cpulist", "")
    put(node / "node3/distance", "80 80 90 10")
    put(node / "node3/meminfo", "Node 3 MemTotal: 1048576 kB\nNode 3 MemFree: 1048576 kB")
    for number in range(3):
        far = (node / f"node{number}/distance").read_text().strip()
        put(node / f"node{number}/distance", f"{far} 80")
    put(node / "online", "0-3")
    until(lambda: tree.read(batch, "cpuset.mems") == "0-3")
    assert tree.read(web, "cpuset.mems") == "0-1"
    put(node / "online", "0-1")
    until(lambda: tree.read(batch, "cpuset.mems") == "0-1")


def test_cpus_that_kubelet_pins_are_left_to_kubelet(runtime: Runtime, plugin: Plugin, tree: Tree, root: Path) -> None:
    """(E8, E20)"""
    state = root / "var/lib/kubelet/cpu_manager_state"
    state.parent.mkdir(parents=True)
    state.write_text('{"policyName":"static","defaultCpuSet":"2-7","entries":{},"checksum":1}')
    plugin.start(config=PERIOD)
    runtime.register()
    made, batch = pod("db", "HLS", guaranteed=True), pod("batch", "BE")
    folders: dict[str, str] = {}
    inner: dict[str, str] = {}
    for each, given in ((made, "0-1"), (batch, "2-7")):
        folders[each.name] = tree.pod(each)
        runtime.run_pod(each)
        asked = container(each, cpus=2)
        asked.linux.resources.cpu.cpus = given
        assert not runtime.create(asked).linux.resources.cpu.cpus
        inner[each.name] = tree.container(asked)
        tree.write(inner[each.name], "cpuset.cpus", given)
        runtime.start(asked.id)
    come_round(tree, folders["batch"])
    assert tree.read(inner["db"], "cpuset.cpus") == "0-1"
    assert cpus(tree, inner["batch"]) <= {2, 3, 4, 5, 6, 7}


def check_every(period: float, holds: Callable[[], bool], times: int) -> None:
    for _ in range(times):
        assert holds()
        time.sleep(period)


def test_under_wild_load_the_floor_holds_and_no_cpuset_is_ever_empty(
    runtime: Runtime, plugin: Plugin, tree: Tree, load: Load
) -> None:
    plugin.start(config={**PERIOD, "floor": 2})
    runtime.register()
    web, _ = start_pod(runtime, tree, "web", "LS", 1)
    batch, job = start_pod(runtime, tree, "batch", "BE")
    until(lambda: quota(tree, batch) < 9)
    load.start()
    for step in range(12):
        load.cpus = {"": 8.0 * (step % 2), web: 7.0 * (step % 2), batch: 1.0 * (step % 2)}
        check_every(0.05, lambda: quota(tree, batch) >= 2 and len(cpus(tree, job)) >= 2, 4)


def test_the_loop_ends_at_once_also_while_it_rests_from_a_long_turn(tmp_path: Path) -> None:
    files = Hierarchy(tmp_path)
    loop = Loop(World(Config()), files, Writer(files, None), {})
    loop.seen.took = 60
    loop.start()
    loop.wake()
    time.sleep(0.1)  # it rests now, for five minutes
    assert loop.end(timeout_s=5)

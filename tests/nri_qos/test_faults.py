"""Every fault of reference/nri.md section 5 and the test of what is right instead; those without a home are here.

What can only be measured is measured by ``bench/nri.py`` (D20, F10), ``bench/qos.py``, and in the guest by ``e2e``.
"""

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nri_qos.cgroups import Tree
from tests.nri_qos.conftest import TOP, Plugin, container, pod, run_before, start_pod, until
from tests.nri_qos.nodes import hang, put
from ubsim.runtime import PluginClosed, Runtime

PERIOD = {"period": 0.1}

FAULTS = {
    "A1": "test_configure_is_served_before_the_registration_is_confirmed",
    "A2": "test_no_frame_on_the_trunk_is_larger_than_the_runtime_can_read",
    "A4": "test_only_events_that_the_runtime_knows_are_asked_for",
    "A5": "test_an_old_runtime_that_sends_state_changes_leads_to_the_same_decisions",
    "A6": "test_an_unknown_call_is_unimplemented_and_the_session_stays",
    "A7": "test_a_restarted_runtime_is_found_again",
    "A10": "test_a_slow_accept_and_a_late_synchronize_are_waited_for",
    "A11": "test_a_missing_socket_is_waited_for_with_one_line_in_the_log",
    "A12": "test_the_runtimes_timeouts_are_told",
    "A13": "test_sysfs_that_hangs_costs_neither_the_session_nor_a_late_answer",
    "A14": "test_a_plugin_that_hardly_gets_a_cpu_still_answers",
    "A15": "test_stop_and_remove_are_fine_twice_late_and_of_strangers",
    "A16": "test_readiness_follows_the_session_and_liveness_does_not",
    "A17": "test_the_runtime_is_never_asked_for_anything",
    "A20": "test_a_signal_ends_it_at_once_in_every_phase",
    "A21": "test_a_slow_accept_and_a_late_synchronize_are_waited_for",
    "A22": "test_a_containerd_that_can_hang_at_registration_is_warned_about",
    "A23": "test_the_runtime_is_never_asked_for_anything",
    "B1": "test_a_synchronize_in_parts_is_the_union_of_its_parts",
    "B2": "test_many_containers_are_synchronized_while_sysfs_hangs",
    "B3": "test_a_container_that_nobody_announced_is_found_by_its_cgroup",
    "B5": "test_a_restarted_runtime_is_found_again",
    "B7": "test_what_pods_held_that_went_while_the_runtime_was_away_is_free",
    "B8": "test_cpus_that_went_while_the_plugin_was_away_are_nobodys",
    "B9": "test_a_journal_torn_at_any_byte_is_read_as_far_as_it_goes",
    "B13": "test_stop_and_remove_are_fine_twice_late_and_of_strangers",
    "B14": "test_a_runtime_that_hangs_up_again_and_again_costs_nothing_and_is_not_stormed",
    "C1": "test_nothing_but_what_was_decided_is_in_the_answer",
    "C2": "test_cpus_set_by_an_earlier_plugin_are_respected",
    "C3": "test_nothing_but_what_was_decided_is_in_the_answer",
    "C4": "test_a_setting_without_value_puts_back_one_file",
    "C6": "test_nothing_but_what_was_decided_is_in_the_answer",
    "C8": "test_an_update_by_kubelet_does_not_undo_what_was_decided",
    "C10": "test_a_container_whose_pod_nobody_announced_is_decided_by_its_own_words",
    "C12": "test_a_machine_that_cannot_be_read_is_a_doubt",
    "C13": "test_a_successor_that_is_created_before_its_predecessor_ends_keeps_the_cpus",
    "C14": "test_static_pods_are_the_nodes_own_whatever_their_namespace",
    "C16": "test_a_class_that_changes_while_the_pod_runs_is_not_followed",
    "C17": "test_pods_name_cpus_only_where_the_configuration_lets_them",
    "C19": "test_a_pod_without_a_running_container_is_not_squeezed",
    "C20": "test_containers_without_requests_are_spread",
    "D1": "test_online_weights_are_left_as_the_runtime_made_them",
    "D3": "test_a_quota_is_never_less_than_the_kernel_takes",
    "D5": "test_parents_are_widened_first_and_narrowed_last",
    "D6": "test_waiting_for_ones_own_limit_is_not_waiting_for_others",
    "D8": "test_offline_work_is_squeezed_at_once_and_given_back_slowly",
    "D9": "test_memory_is_whole_pages_and_never_none",
    "D10": "test_protection_that_a_parent_does_not_share_is_an_alarm",
    "D11": "test_offline_pods_give_memory_back_when_the_node_runs_short",
    "D12": "test_a_cgroup_that_vanishes_is_quietly_forgotten",
    "D13": "test_a_file_that_cannot_be_read_is_complained_about_once",
    "D15": "test_what_kubelet_writes_above_the_pods_is_not_ours_to_judge",
    "D16": "test_without_cgroup_v2_nothing_is_enforced_and_the_plugin_stays",
    "D18": "test_metrics_tell_decisions_quota_session_and_capabilities",
    "D19": "test_what_the_kernel_offers_is_looked_at_once_and_told",
    "D20": "test_containers_cost_no_threads",
    "D23": "test_bandwidth_that_is_no_percentage_is_left_alone",
    "D24": "test_memory_by_node_counts_bytes_of_whatever_nodes_there_are",
    "D25": "test_an_effective_set_that_differs_is_an_alarm",
    "D27": "test_metrics_tell_decisions_quota_session_and_capabilities",
    "E3": "test_an_effective_set_that_differs_is_an_alarm",
    "E4": "test_a_container_whose_own_cpus_go_offline_gets_others",
    "E5": "test_reserved_and_isolated_cpus_are_handed_to_nobody",
    "E7": "test_a_kernel_without_numa_is_one_node",
    "E8": "test_cpus_that_kubelet_pins_are_left_to_kubelet",
    "E9": "test_a_limit_of_cpus_beside_cpus_of_ones_own_is_lifted_if_so_configured",
    "E10": "test_memory_of_online_work_that_runs_is_not_moved",
    "E13": "test_a_borrowed_node_that_appears_is_for_offline_work_only",
    "E14": "test_a_borrowed_node_that_appears_is_for_offline_work_only",
    "E15": "test_bound_memory_is_widened_rather_than_too_small",
    "E17": "test_a_node_that_grows_is_taken_at_its_new_size",
    "E20": "test_a_writer_who_insists_is_given_way_to",
    "E21": "test_the_table_shows_what_runs_and_how_it_does",
    "E22": "test_interrupts_on_somebodys_own_cpus_are_told",
    "E24": "test_cpus_of_ones_own_are_there_before_the_start_and_stay",
    "E25": "test_the_search_among_forty_nodes_is_short",
    "F1": "test_counters_that_vanish_make_it_careful",
    "F5": "test_nobody_is_ended_unless_that_is_configured",
    "F6": "test_offline_work_is_never_frozen_or_starved",
    "F7": "test_restore_leaves_no_trace_after_a_kill",
    "F9": "test_host_processes_count_as_need",
    "F10": "test_containers_cost_no_threads",
    "H1": "test_a_runtime_can_start_the_plugin_itself",
    "H2": "test_nothing_is_imported_late",
    "H4": "test_no_program_is_ever_started",
    "H5": "test_nothing_is_put_where_the_runtime_looks_for_plugins",
}


def test_every_fault_of_our_peers_has_a_test_that_exists() -> None:
    sources = "\n".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    assert set(FAULTS.values()) <= set(re.findall(r"^def (test_\w+)\(", sources, re.MULTILINE))
    marked = {letter for found in re.findall(r'"""\(([A-H0-9, ]+)\)', sources) for letter in found.split(", ")}
    assert marked <= FAULTS.keys()


def test_the_runtimes_timeouts_are_told(root: Path, plugin: Plugin) -> None:
    """(A12)"""
    with Runtime(root / "var/run/nri/nri.sock", timeout_s=45) as runtime:
        plugin.start()
        runtime.register()
    line = plugin.wait_for("configured by the runtime")
    assert (line["registration_timeout_ms"], line["request_timeout_ms"]) == (5000, 45000)


@contextlib.contextmanager
def hardly_running(process: int) -> Iterator[None]:
    """Let a process run for 5 ms of 100, as under a cpu.max of 5 %."""
    is_ending = threading.Event()

    def throttle() -> None:
        while not is_ending.wait(0.005):
            os.kill(process, signal.SIGSTOP)
            time.sleep(0.095)
            os.kill(process, signal.SIGCONT)

    thread = threading.Thread(target=throttle)
    thread.start()
    try:
        yield
    finally:
        is_ending.set()
        thread.join()


def test_a_plugin_that_hardly_gets_a_cpu_still_answers(runtime: Runtime, plugin: Plugin) -> None:
    """(A14) Each within what the runtime waits for."""
    plugin.start()
    runtime.register()
    with hardly_running(plugin.process.pid):
        for number in range(20):
            made = pod(f"p{number}", "BE")
            runtime.run_pod(made)
            assert runtime.create(container(made)).linux.resources.cpu.cpus == "0-7"


def test_the_runtime_is_never_asked_for_anything(runtime: Runtime, plugin: Plugin, tree: Tree) -> None:
    """(A17, A23) A call of ours that it does not answer, or answers late, cannot stop anybody."""
    plugin.start(config=PERIOD)
    runtime.register()
    start_pod(runtime, tree, "web", "LS", 1)
    batch, _ = start_pod(runtime, tree, "batch", "BE")
    until(lambda: tree.read(batch, "cpu.max") != "max 100000")
    with pytest.raises(PluginClosed, match="no call within"):
        runtime.peer.asked(timeout_s=0.5)


def test_many_containers_are_synchronized_while_sysfs_hangs(runtime: Runtime, plugin: Plugin, root: Path) -> None:
    """(B2)"""
    hang(root)
    for number in range(500):
        each = pod(f"pod{number}", "LS")
        runtime.pods[each.id] = each
        made = container(each)
        runtime.containers[made.id] = made
    plugin.start()
    assert not runtime.register().update
    assert plugin.wait_for("synchronized with the runtime")["containers"] == 500


def test_what_pods_held_that_went_while_the_runtime_was_away_is_free(runtime: Runtime, plugin: Plugin) -> None:
    """(B7)"""
    plugin.start()
    runtime.register()
    gone, new = pod("gone", "HLS", guaranteed=True), pod("new", "HLS", guaranteed=True)
    runtime.run_pod(gone)
    assert runtime.create(container(gone, cpus=2)).linux.resources.cpu.cpus == "0-1"
    runtime.shut_down()
    runtime.pods.clear()
    runtime.containers.clear()
    runtime.listen()
    runtime.register()
    runtime.run_pod(new)
    assert runtime.create(container(new, cpus=2)).linux.resources.cpu.cpus == "0-1"


def test_cpus_that_went_while_the_plugin_was_away_are_nobodys(
    runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    """(B8)"""
    plugin.start(config=PERIOD)
    runtime.register()
    _, db = start_pod(runtime, tree, "db", "HLS", 2, guaranteed=True)
    until(lambda: (root / "run/ub-node/nri-qos.json").exists())
    plugin.stop(signal.SIGKILL)
    put(root / "sys/devices/system/cpu/online", "0,2-7")
    plugin.start(config={**PERIOD, "reserved": "7"})
    runtime.register()
    until(lambda: tree.read(db, "cpuset.cpus") == "0,2")
    batch = pod("batch", "BE")
    runtime.run_pod(batch)
    given = runtime.create(container(batch)).linux.resources.cpu.cpus
    assert not {"0", "1", "2", "7"} & set(given.replace("-", ","))


def test_a_successor_that_is_created_before_its_predecessor_ends_keeps_the_cpus(
    runtime: Runtime, plugin: Plugin
) -> None:
    """(C13)"""
    plugin.start()
    runtime.register()
    db, other = pod("db", "HLS", guaranteed=True), pod("other", "HLS", guaranteed=True)
    for each in (db, other):
        runtime.run_pod(each)
    for number in (0, 1):
        assert runtime.create(container(db, cpus=2, number=number)).linux.resources.cpu.cpus == "0-1"
        runtime.start(f"db-app-{number}")
    runtime.stop("db-app-0")
    runtime.remove("db-app-0")
    assert runtime.create(container(other, cpus=2)).linux.resources.cpu.cpus == "4-5"


def test_what_kubelet_writes_above_the_pods_is_not_ours_to_judge(runtime: Runtime, plugin: Plugin, tree: Tree) -> None:
    """(D15) It sets the weight of the best-effort pods once a minute."""
    above = "kubepods.slice/kubepods-besteffort.slice"
    tree.add(above, cpu__weight="1")
    before = {path: text for path, text in tree.everything().items() if path.startswith(above)}
    plugin.start(config=PERIOD)
    runtime.register()
    batch, _ = start_pod(runtime, tree, "batch", "BE")
    until(lambda: tree.read(batch, "cpu.max") != "max 100000")
    assert {path: text for path, text in tree.everything().items() if path in before} == before


def test_containers_cost_no_threads(runtime: Runtime, plugin: Plugin, tree: Tree) -> None:
    """(D20, F10)"""
    plugin.start(config=PERIOD)
    runtime.register()
    start_pod(runtime, tree, "first", "BE")
    plugin.wait_for("offline work squeezed")
    before = threads(plugin)
    for number in range(40):
        last, _ = start_pod(runtime, tree, f"p{number}", "BE")
    until(lambda: tree.read(last, "cpu.weight") == "1")
    assert threads(plugin) <= before


def threads(plugin: Plugin) -> int:
    return len(list(Path(f"/proc/{plugin.process.pid}/task").iterdir()))


def test_memory_of_online_work_that_runs_is_not_moved(runtime: Runtime, plugin: Plugin, tree: Tree) -> None:
    """(E10) It was bound before we knew of it: moving its pages would stop it for as long as that takes."""
    made = pod("db", "HLS", guaranteed=True)
    asked = container(made, cpus=2)
    asked.linux.resources.cpu.cpus, asked.linux.resources.cpu.mems = "4-5", "1"
    _, inner = run_before(runtime, tree, made, asked)
    tree.write(inner, "cpuset.mems", "1")
    plugin.start(config=PERIOD)
    runtime.register()
    batch, _ = start_pod(runtime, tree, "batch", "BE")
    until(lambda: tree.read(batch, "cpu.max") != "max 100000")
    assert (tree.read(inner, "cpuset.mems"), plugin.lines("a cgroup file did not become what was written")) == ("1", [])


def test_a_node_that_grows_is_taken_at_its_new_size(runtime: Runtime, plugin: Plugin, root: Path) -> None:
    """(E17)"""
    plugin.start(config=PERIOD)
    runtime.register()
    made = pod("big", "LS", guaranteed=False, **{"qos.unifiedbus.com/numa": "single-numa-node"})
    runtime.run_pod(made)
    asked = container(made, cpus=1)
    asked.linux.resources.memory.limit.value = 20 << 30  # more than the 16 GiB of a node
    with pytest.raises(Exception, match="NUMA policy single-numa-node"):
        runtime.create(asked)
    put(root / "sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 33554432 kB\nNode 1 MemFree: 33554432 kB")
    plugin.wait_for("CPUs and NUMA nodes", 2)
    assert runtime.create(asked).linux.resources.cpu.mems == "1"


def test_cpus_of_ones_own_are_there_before_the_start_and_stay(runtime: Runtime, plugin: Plugin, tree: Tree) -> None:
    """(E24) Programs look once, and pin their threads by what they see."""
    plugin.start(config=PERIOD)
    runtime.register()
    _, db = start_pod(runtime, tree, "db", "HLS", 2, guaranteed=True)
    assert tree.read(db, "cpuset.cpus") == "0-1"
    for number in range(3):
        start_pod(runtime, tree, f"other{number}", "HLS", 1, guaranteed=True)
    runtime.stop("other0-app-0")
    batch, _ = start_pod(runtime, tree, "batch", "BE")
    until(lambda: tree.read(batch, "cpu.max") != "max 100000")
    assert tree.read(db, "cpuset.cpus") == "0-1"


def test_offline_work_is_never_frozen_or_starved(runtime: Runtime, plugin: Plugin, tree: Tree) -> None:
    """(F6) It may hold what online work waits for: a lock, or memory."""
    plugin.start(config={**PERIOD, "floor": 0.5})
    runtime.register()
    web, _ = start_pod(runtime, tree, "web", "LS", 1)
    batch, inner = start_pod(runtime, tree, "batch", "BE", files={"cgroup.freeze": "0"})
    tree.write(inner, "cgroup.freeze", "0")
    until(lambda: tree.read(batch, "cpu.max") != "max 100000")

    def is_at_the_floor() -> bool:
        tree.spend(web, 100_000, waited=1_000_000)  # it would be halved each time
        return int(tree.read(batch, "cpu.max").split()[0]) <= 29_000  # or so little more that it is not written

    until(is_at_the_floor)
    for _ in range(20):
        is_at_the_floor()
        assert int(tree.read(batch, "cpu.max").split()[0]) >= 25_000
        time.sleep(0.05)
    assert {tree.read(batch, "cgroup.freeze"), tree.read(inner, "cgroup.freeze")} == {"0"}


def test_nothing_is_imported_late() -> None:
    """(H2) What is unpacked into /tmp may be gone after ten days. Metrics are imported at the start, if at all."""
    late = {
        (path.name, found)
        for path in (TOP / "nri_qos").rglob("*.py")
        if path.name != "cli.py"  # not the daemon
        for found in re.findall(r"^ {4,}(?:from|import) (\S+)", path.read_text(), re.MULTILINE)
    }
    assert late == {("daemon.py", "nri_qos.metrics")}


def test_no_program_is_ever_started() -> None:
    """(H4) So no program of the host runs with libraries from our package."""
    for path in (TOP / "nri_qos").rglob("*.py"):
        assert not re.search(r"\bsubprocess\b|\bos\.(exec|spawn|fork|system|popen)", path.read_text()), path.name


def test_nothing_is_put_where_the_runtime_looks_for_plugins() -> None:
    """(H5) One file with a wrong name there keeps the runtime from finding any plugin."""
    files = (path for path in (TOP / "packaging").rglob("*") if path.is_file())
    assert not [path for path in files if b"/opt/nri/plugins" in path.read_bytes()]

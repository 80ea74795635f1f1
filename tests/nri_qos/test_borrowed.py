"""Borrowed memory: who may have it, how much, and who has it when it is to be returned."""

import shutil
from pathlib import Path

import pytest

from tests.nri_qos import nodes
from tests.nri_qos.cgroups import Tree
from tests.nri_qos.conftest import Plugin, container, pod, start_pod, until
from tests.nri_qos.test_seeing import ubnode
from ubsim.runtime import CallRefused, Runtime

PERIOD = {"period": 0.1}
MUCH, LITTLE = "anon N0=9999999 N2=2000000", "anon N0=9999999"


def test_a_pod_over_its_budget_is_kept_off_borrowed_memory_until_well_below(
    runtime: Runtime, plugin: Plugin, tree: Tree
) -> None:
    plugin.start(config={**PERIOD, "remote_budget": {"pod": "1Mi"}})
    runtime.register()
    batch, inner = start_pod(runtime, tree, "batch", "BE")
    _, other = start_pod(runtime, tree, "other", "BE")
    tree.write(batch, "memory.numa_stat", MUCH)
    until(lambda: tree.read(inner, "cpuset.mems") == "0-1")
    again = container(runtime.pods["sandbox-batch"], "again")
    assert runtime.create(again).linux.resources.cpu.mems == "0-1"
    assert tree.read(other, "cpuset.mems") == "0-2"
    tree.write(batch, "memory.numa_stat", LITTLE)
    until(lambda: tree.read(inner, "cpuset.mems") == "0-2")


def test_a_namespace_over_its_budget_is_kept_off_with_all_its_offline_pods(
    runtime: Runtime, plugin: Plugin, tree: Tree
) -> None:
    plugin.start(config={**PERIOD, "remote_budget": {"namespace": "3Mi"}})
    runtime.register()
    folders = [start_pod(runtime, tree, name, "BE") for name in ("one", "two")]
    _, web = start_pod(runtime, tree, "web", "LS")
    for folder, _ in folders:
        tree.write(folder, "memory.numa_stat", MUCH)
    for _, inner in folders:
        until(lambda inner=inner: tree.read(inner, "cpuset.mems") == "0-1")  # type: ignore[misc]
    assert tree.read(web, "cpuset.mems") == "0-1"
    late, elsewhere = pod("late", "BE"), pod("elsewhere", "BE")
    elsewhere.namespace = "lab"
    for each in (late, elsewhere):
        runtime.run_pod(each)
    assert runtime.create(container(late)).linux.resources.cpu.mems == "0-1"
    assert runtime.create(container(elsewhere)).linux.resources.cpu.mems == "0-2"


def test_over_the_limit_there_is_no_further_offline_container_and_nobody_is_ended(
    runtime: Runtime, plugin: Plugin, tree: Tree
) -> None:
    plugin.start(config={**PERIOD, "remote_limit": {"namespace": "1Mi"}})
    runtime.register()
    batch, inner = start_pod(runtime, tree, "batch", "BE")
    tree.write(batch, "memory.numa_stat", MUCH)
    line = plugin.wait_for("borrowed memory over the limit")
    assert line["namespaces"] == ["shop"]
    late, web = pod("late", "BE"), pod("web", "LS")
    for each in (late, web):
        runtime.run_pod(each)
    with pytest.raises(CallRefused, match="more borrowed memory than remote_limit allows"):
        runtime.create(container(late))
    runtime.create(container(web))
    until(lambda: tree.read(inner, "cpuset.mems") == "0-1")  # a limit is a budget, too
    assert tree.read(inner, "cgroup.kill") == ""
    tree.write(batch, "memory.numa_stat", LITTLE)
    plugin.wait_for("borrowed memory over the limit", 2)
    runtime.create(container(late))


def test_whom_it_did_not_help_to_be_kept_off_is_ended_if_that_is_allowed(
    runtime: Runtime, plugin: Plugin, tree: Tree
) -> None:
    plugin.start(config={**PERIOD, "remote_limit": {"pod": "1Mi"}, "eviction": {"after": 1, "every": 600}})
    runtime.register()
    killed = {}
    for name, qos, used in (("web", "LS", MUCH), ("batch", "BE", MUCH), ("small", "BE", LITTLE)):
        folder, killed[name] = start_pod(runtime, tree, name, qos)
        tree.write(folder, "memory.numa_stat", used)
    line = plugin.wait_for("an offline pod is ended")
    assert (line["pod"], line["because"]) == ("shop/batch", "borrowed memory")
    until(lambda: tree.read(killed["batch"], "cgroup.kill") == "1")
    assert {name for name, folder in killed.items() if tree.read(folder, "cgroup.kill")} == {"batch"}


def test_a_node_that_came_late_has_users_that_are_listed_before_it_is_returned(
    runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    shutil.rmtree(root / "sys/devices/system/node")
    nodes.write(nodes.machine("0-3", "4-7"), root)
    plugin.start(config=PERIOD)
    runtime.register()
    batch, inner = start_pod(runtime, tree, "batch", "BE")
    start_pod(runtime, tree, "web", "LS")
    assert ubnode(root, "node", "2", "--users").startswith("no pod uses NUMA node 2\n")
    nodes.write(nodes.machine("0-3", "4-7", remote=1), root)
    until(lambda: tree.read(inner, "cpuset.mems") == "0-2")
    tree.write(batch, "memory.numa_stat", "anon N0=1 N2=1048576")
    lines = ubnode(root, "node", "2", "--users").splitlines()
    assert lines[1].split() == ["shop/batch", "BE", "1.0", "MiB", "app"]


def test_who_may_use_a_borrowed_node_because_nothing_forbids_it_is_listed_too(
    runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    """(E13) An empty list of nodes means those of the parent, so what counts is what is effective."""
    plugin.start(config=PERIOD)
    runtime.register()
    _, inner = start_pod(runtime, tree, "plain", None)
    tree.write(inner, "cpuset.mems.effective", "0-2")
    lines = ubnode(root, "node", "2", "--users").splitlines()
    assert lines[1].split() == ["shop/plain", "undeclared", "0.0", "MiB", "app"]

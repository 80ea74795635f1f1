"""The plugin process: what containers get when they are created, updated and resized.

Letters and numbers in parentheses are the faults of reference/nri.md section 5.
"""

from pathlib import Path
from typing import Any

import pytest
from ubproto.nri.v1alpha1 import nri_pb2

from tests.nri_qos import nodes
from tests.nri_qos.conftest import Plugin, container, cpu, pod
from ubsim.runtime import CallRefused, Runtime


def test_each_class_gets_its_share(runtime: Runtime, plugin: Plugin) -> None:
    plugin.start()
    runtime.register()
    online, own, offline = pod("web", "LS"), pod("db", "HLS", guaranteed=True), pod("batch", "BE")
    for each in (online, own, offline):
        runtime.run_pod(each)
    assert cpu(runtime.create(container(online, cpus=1))) == (0, "0-7", "0-1")
    assert cpu(runtime.create(container(own, cpus=2))) == (0, "0-1", "0")
    assert cpu(runtime.create(container(offline, cpus=1))) == (2, "2-7", "0-2")
    assert cpu(runtime.create(container(online, "second"))) == (0, "2-7", "0-1")
    line = plugin.wait_for("container decided", 3)
    assert (line["pod"], line["container"], line["class"], line["cpus"]) == ("shop/batch", "app", "BE", "2-7")


def test_nothing_but_what_was_decided_is_in_the_answer(runtime: Runtime, plugin: Plugin) -> None:
    """(C1, C2) Every field that is set becomes ours, and no other plugin may set it."""
    plugin.start()
    runtime.register()
    batch = pod("batch", "BE")
    runtime.run_pod(batch)
    adjust = runtime.create(container(batch))
    assert {field.name for field, _ in adjust.ListFields()} == {"linux"}
    assert {field.name for field, _ in adjust.linux.ListFields()} == {"resources"}
    assert {field.name for field, _ in adjust.linux.resources.ListFields()} == {"cpu"}
    assert {field.name for field, _ in adjust.linux.resources.cpu.ListFields()} == {"shares", "cpus", "mems"}


@pytest.mark.parametrize("annotations", [{}, {"qos.unifiedbus.com__class": "hls"}, {"koordinator.sh__qosClass": "LSX"}])
def test_undeclared_pods_and_typos_are_left_alone(
    annotations: dict[str, Any], runtime: Runtime, plugin: Plugin
) -> None:
    plugin.start()
    runtime.register()
    web = pod("web", None, guaranteed=True, **annotations)
    runtime.run_pod(web)
    assert not runtime.create(container(web, cpus=2)).ListFields()


def test_cpus_set_by_an_earlier_plugin_are_respected(runtime: Runtime, plugin: Plugin) -> None:
    """(C2)"""
    plugin.start()
    runtime.register()
    web = pod("web", "HLS", guaranteed=True)
    runtime.run_pod(web)
    theirs = container(web, cpus=2)
    theirs.linux.resources.cpu.cpus = "6-7"
    assert cpu(runtime.create(theirs)) == (0, "", "1")  # memory beside their CPUs
    batch = pod("batch", "BE")
    runtime.run_pod(batch)
    assert cpu(runtime.create(container(batch)))[1] == "0-5"  # (E8)


def test_an_update_by_kubelet_does_not_undo_what_was_decided(runtime: Runtime, plugin: Plugin) -> None:
    """(C8)"""
    plugin.start()
    runtime.register()
    own, offline = pod("db", "HLS", guaranteed=True), pod("batch", "BE")
    for each in (own, offline):
        runtime.run_pod(each)
        runtime.create(container(each, cpus=2))
    wide = nri_pb2.LinuxResources(cpu=nri_pb2.LinuxCPU(cpus="0-7", mems="0-2"))
    wide.cpu.shares.value = 2048
    (update,) = runtime.update("db-app-0", wide).update
    assert (update.container_id, update.linux.resources.cpu.cpus, update.linux.resources.cpu.mems) == (
        "db-app-0",
        "0-1",
        "0",
    )
    (update,) = runtime.update("batch-app-0", wide).update
    assert cpu(update) == (2, "2-7", "")
    memory_only = nri_pb2.LinuxResources(memory=nri_pb2.LinuxMemory(limit=nri_pb2.OptionalInt64(value=1 << 30)))
    assert not runtime.update("db-app-0", memory_only).update


def test_a_class_that_changes_while_the_pod_runs_is_not_followed(runtime: Runtime, plugin: Plugin) -> None:
    """(C16)"""
    plugin.start()
    runtime.register()
    first = pod("web", "BE")
    runtime.run_pod(first)
    changed = pod("web", "LS")
    runtime.run_pod(changed)
    assert cpu(runtime.create(container(changed)))[0] == 2


def test_a_numa_policy_that_cannot_be_kept_fails_the_creation_with_a_clear_message(
    runtime: Runtime, plugin: Plugin
) -> None:
    plugin.start()
    runtime.register()
    web = pod("web", "HLS", guaranteed=True, **{"qos.unifiedbus.com/numa": "single-numa-node"})
    runtime.run_pod(web)
    with pytest.raises(CallRefused, match="container app of pod shop/web asks for NUMA policy single-numa-node"):
        runtime.create(container(web, cpus=5))
    assert cpu(runtime.create(container(web, cpus=4))) == (0, "0-3", "0")


def test_a_dry_run_reports_and_changes_nothing(runtime: Runtime, plugin: Plugin, root: Path) -> None:
    plugin.start("--dry-run", config={"failure": "strict", "period": 60})
    runtime.register()
    own, batch = pod("db", "HLS", guaranteed=True), pod("batch", "BE")
    for each in (own, batch):
        runtime.run_pod(each)
        assert not runtime.create(container(each, cpus=2)).ListFields()
    lines = [plugin.wait_for("container decided", n) for n in (1, 2)]
    assert [(line["class"], line["cpus"], line["enforced"]) for line in lines] == [
        ("HLS", "0-1", False),
        ("BE", "2-7", False),
    ]
    assert not runtime.update("batch-app-0", nri_pb2.LinuxResources(cpu=nri_pb2.LinuxCPU(cpus="0"))).update


def test_pods_name_cpus_only_where_the_configuration_lets_them(runtime: Runtime, plugin: Plugin, root: Path) -> None:
    """(C17)"""
    plugin.start(config={"period": 60, "cpu_list_namespaces": ["lab"]})
    runtime.register()
    got = {}
    for namespace in ("lab", "shop"):
        for name, qos, listed in (
            ("own", "HLS", "6-7"),
            ("web", "LS", "4-5"),
            ("none", "LS", "90"),
            ("batch", "BE", "1"),
        ):
            made = pod(f"{namespace}-{name}", qos, guaranteed=qos == "HLS", **{"qos.unifiedbus.com/cpus": listed})
            made.namespace = namespace
            runtime.run_pod(made)
            got[namespace, name] = cpu(runtime.create(container(made, cpus=2)))[1]
    assert got == {
        ("lab", "own"): "6-7",
        ("lab", "web"): "4-5",
        ("lab", "none"): "0-5",
        ("lab", "batch"): "0-5",
        ("shop", "own"): "0-1",
        ("shop", "web"): "2-5",
        ("shop", "none"): "2-5",
        ("shop", "batch"): "2-5",
    }


def test_a_list_of_cpus_that_is_not_allowed_is_refused_if_so_configured(runtime: Runtime, plugin: Plugin) -> None:
    """(C17)"""
    plugin.start(config={"period": 60, "failure": "strict"})
    runtime.register()
    web = pod("web", "LS", guaranteed=False, **{"qos.unifiedbus.com/cpus": "4-5"})
    runtime.run_pod(web)
    with pytest.raises(CallRefused, match="its namespace is not in cpu_list_namespaces"):
        runtime.create(container(web))


def resized(cpus: int) -> nri_pb2.LinuxResources:
    resources = nri_pb2.LinuxResources()
    resources.cpu.shares.value, resources.cpu.quota.value = cpus * 1024, cpus * 100_000
    resources.cpu.period.value = 100_000
    return resources


def test_a_container_that_is_resized_in_place_keeps_its_cpus_and_gets_more_or_fewer(
    runtime: Runtime, plugin: Plugin
) -> None:
    plugin.start()
    runtime.register()
    made = pod("db", "HLS", guaranteed=True)
    runtime.run_pod(made)
    assert cpu(runtime.create(container(made, cpus=2)))[1] == "0-1"
    (update,) = runtime.update("db-app-0", resized(3)).update
    assert update.linux.resources.cpu.cpus == "0-2"
    (update,) = runtime.update("db-app-0", resized(1)).update
    assert update.linux.resources.cpu.cpus == "0"
    assert not runtime.update("db-app-0", resized(8)).update  # there are not so many: it keeps what it has
    other = pod("other", "HLS", guaranteed=True)
    runtime.run_pod(other)
    assert cpu(runtime.create(container(other, cpus=3)))[1] in ("1-3", "4-6")


def test_a_container_is_put_where_its_devices_are(runtime: Runtime, plugin: Plugin, root: Path) -> None:
    nodes.add_device(root, "pci0000:00/0000:00:01.0", "1", "10:5")
    nodes.add_device(root, "pci0000:00/0000:00:02.0", "-1", "10:6")
    plugin.start()
    runtime.register()
    for name, minor, node in (("far", 5, "1"), ("anywhere", 6, "0")):
        made = pod(name, "LS", guaranteed=False, **{"qos.unifiedbus.com/numa": "best-effort"})
        runtime.run_pod(made)
        asked = container(made, cpus=1)
        asked.linux.devices.add(path="/dev/x", type="c", major=10, minor=minor)
        assert cpu(runtime.create(asked))[2] == node

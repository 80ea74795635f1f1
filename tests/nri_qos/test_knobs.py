"""The plugin process over a tree of cgroups: what else than CPUs it sets, asks for, and puts back.

Letters and numbers in parentheses are the faults of reference/nri.md section 5.
"""

import signal
from pathlib import Path

import pytest

from nri_qos import knobs, settings
from nri_qos.files import Hierarchy
from tests.nri_qos.cgroups import DEFAULTS, Tree
from tests.nri_qos.conftest import Plugin, come_round, restore, start_pod, until
from tests.nri_qos.nodes import put
from ubsim.runtime import Runtime

PERIOD = {"period": 0.1}


def test_knobs_of_the_configuration_are_set_and_put_back(
    runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    knobs = {"BE": {"memory.swap.max": "0", "io.weight": "10", "cpu.uclamp.max": "50"}, "LS": {"memory.low": "1048576"}}
    plugin.start(config={**PERIOD, "knobs": knobs})
    runtime.register()
    web, _ = start_pod(runtime, tree, "web", "LS", 1)
    batch, _ = start_pod(runtime, tree, "batch", "BE")
    until(lambda: tree.read(batch, "memory.swap.max") == "0" and tree.read(batch, "io.weight") == "10")
    until(lambda: tree.read(web, "memory.low") == "1048576")
    plugin.stop(signal.SIGKILL)
    restore(root)
    assert (tree.read(batch, "io.weight"), tree.read(web, "memory.low")) == ("default 100", "0")


def test_a_knob_that_is_configured_no_more_goes_back_at_the_next_start(
    runtime: Runtime, plugin: Plugin, tree: Tree
) -> None:
    plugin.start(config={**PERIOD, "knobs": {"LS": {"memory.low": "4096", "pids.max": "10"}}})
    runtime.register()
    web, _ = start_pod(runtime, tree, "web", "LS", 1)
    until(lambda: (tree.read(web, "memory.low"), tree.read(web, "pids.max")) == ("4096", "10"))
    plugin.stop()
    plugin.start(config={**PERIOD, "knobs": {"LS": {"memory.low": "8192"}}})
    runtime.register()
    until(lambda: (tree.read(web, "memory.low"), tree.read(web, "pids.max")) == ("8192", "max"))


def test_a_limit_of_cpus_beside_cpus_of_ones_own_is_lifted_if_so_configured(
    runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    """(E9)"""
    plugin.start(config={**PERIOD, "own_cpus_without_quota": True})
    runtime.register()
    db, own = start_pod(runtime, tree, "db", "HLS", 2, guaranteed=True, files={"cpu.max": "200000 100000"})
    web, _ = start_pod(runtime, tree, "web", "LS", 1, files={"cpu.max": "100000 100000"})
    tree.write(own, "cpu.max", "200000 100000")
    until(lambda: tree.read(db, "cpu.max") == tree.read(own, "cpu.max") == "max")
    assert tree.read(web, "cpu.max") == "100000 100000"
    plugin.stop(signal.SIGKILL)
    restore(root)
    assert tree.read(db, "cpu.max") == "200000 100000"


@pytest.mark.parametrize(
    ("knobs", "complaint"),
    [
        ({"BE": {"memory.max": "1"}}, "knobs.BE: memory.max cannot be set"),
        ({"BE": {"memory.high": "0"}}, "knobs.BE: memory.high: 0 is less than a page"),
        ({"BE": {"memory.high": "4095"}}, "knobs.BE: memory.high: 4095 is less than a page"),
        ({"LS": {"cpu.uclamp.min": "100.1"}}, "knobs.LS: cpu.uclamp.min: '100.1' is not a value of it"),
        ({"BE": {"../x": "1"}}, "cannot be set"),
        ({"XX": {}}, "Invalid enum value 'XX'"),
    ],
)
def test_a_knob_that_does_harm_is_refused(knobs: object, complaint: str, tmp_path: Path, plugin: Plugin) -> None:
    plugin.start(config={"knobs": knobs})
    assert plugin.process.wait(timeout=30) == 2
    assert complaint in plugin.log.read_text()


def shortage(root: Path, free_kb: int) -> None:
    """Let both nodes of this server have 1 GB, and so much of it free."""
    for number in (0, 1):
        text = f"Node {number} MemTotal: 1000000 kB\nNode {number} MemFree: {free_kb} kB"
        put(root / f"sys/devices/system/node/node{number}/meminfo", text)


def big_pods(runtime: Runtime, tree: Tree) -> tuple[str, str]:
    """Run an online and an offline pod of 1 GB each; return their folders."""
    web, _ = start_pod(runtime, tree, "web", "LS", 1)
    batch, _ = start_pod(runtime, tree, "batch", "BE")
    for folder in (web, batch):
        tree.write(folder, "memory.current", "1000000000")
    return web, batch


def test_offline_pods_give_memory_back_when_the_node_runs_short(
    runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    """(D9, D11)"""
    plugin.start(config={**PERIOD, "memory_reserve": 0.2})
    runtime.register()
    web, batch = big_pods(runtime, tree)
    shortage(root, 1000)
    until(lambda: tree.read(batch, "memory.high") == str(950_000_000 // 4096 * 4096))
    assert (tree.read(web, "memory.high"), tree.read(batch, "memory.max")) == ("max", "max")
    shortage(root, 900_000)
    until(lambda: tree.read(batch, "memory.high") == "max")


def add_disk(root: Path, name: str, numbers: str) -> None:
    folder = root / "sys/class/block" / name
    folder.mkdir(parents=True)
    put(folder / "dev", numbers)


def test_limits_of_single_devices_are_set_by_line_and_put_back(
    runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    add_disk(root, "nvme0n1", "259:0")
    wanted = {
        "io.max 8:16": "wbps=1048576 riops=100",
        "io.max nvme0n1": "rbps=4096",
        "io.latency 8:16": "target=75000",
        "io.weight nvme0n1": "10",
        "rdma.max ubcore0": "hca_object=2000",
    }
    plugin.start(config={**PERIOD, "knobs": {"BE": wanted}})
    runtime.register()
    web, _ = start_pod(runtime, tree, "web", "LS", 1)
    batch, _ = start_pod(runtime, tree, "batch", "BE", files={"rdma.max": "ubcore0 hca_handle=7 hca_object=max"})
    for file, text in {
        "io.max": "8:16 rbps=max wbps=1048576 riops=100 wiops=max\n259:0 rbps=4096 wbps=max riops=max wiops=max",
        "io.latency": "8:16 target=75000",
        "io.weight": "default 100\n259:0 10",
        "rdma.max": "ubcore0 hca_handle=max hca_object=2000",
    }.items():
        until(lambda file=file, text=text: tree.read(batch, file) == text)  # type: ignore[misc]
        assert tree.read(web, file) == DEFAULTS[file]
    plugin.stop(signal.SIGKILL)
    assert restore(root).returncode == 0
    assert {file: tree.read(batch, file) for file in ("io.max", "io.latency", "io.weight", "rdma.max")} == {
        "io.max": "",
        "io.latency": "",
        "io.weight": "default 100",
        "rdma.max": "ubcore0 hca_handle=7 hca_object=max",
    }


def test_a_device_that_is_not_there_is_a_capability_and_no_error(runtime: Runtime, plugin: Plugin, tree: Tree) -> None:
    wanted = {"io.max sdx": "rbps=1", "rdma.max mlx5_9": "hca_handle=1", "pids.max": "100"}
    plugin.start(config={**PERIOD, "knobs": {"BE": wanted}})
    runtime.register()
    batch, _ = start_pod(runtime, tree, "batch", "BE")
    until(lambda: tree.read(batch, "pids.max") == "100")
    plugin.wait_for("this kernel has no such cgroup file", 2)
    assert {line["file"] for line in plugin.lines("this kernel has no such cgroup file")} == {
        "io.max sdx",
        "rdma.max mlx5_9",
    }
    assert '"level": "error"' not in plugin.log.read_text()


def test_what_the_kernel_offers_is_looked_at_once_and_told(runtime: Runtime, plugin: Plugin, tree: Tree) -> None:
    """(D16, D19)"""
    plugin.start(config=PERIOD)
    runtime.register()
    start_pod(runtime, tree, "web", "LS", 1, files={"cgroup.controllers": "cpuset io memory pids"})
    start_pod(runtime, tree, "batch", "BE")
    line = plugin.wait_for("what the kernel offers to pods")
    assert (line["level"], line["not_enabled"]) == ("warning", ["cpu"])
    assert "cpu.uclamp.max" in line["lacks"]
    assert "cpu.max" not in line["lacks"]
    plugin.wait_for("offline work squeezed")
    assert len(plugin.lines("what the kernel offers to pods")) == 1


def test_the_kernel_is_asked_to_reclaim_from_offline_pods_before_they_are_limited(
    runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    plugin.start(config={**PERIOD, "memory_reserve": 0.2})
    runtime.register()
    web, batch = big_pods(runtime, tree)
    plugin.wait_for("what the kernel offers to pods")
    shortage(root, 195_000)  # of 200 000 each
    until(lambda: tree.read(batch, "memory.reclaim") == str(10_240_000 // 4096 * 4096))  # what is missing, no more
    until(lambda: tree.read(batch, "memory.high") != "max")  # that alone did not help
    assert (tree.read(web, "memory.reclaim"), tree.read(web, "memory.high")) == ("", "max")
    shortage(root, 100)
    until(lambda: tree.read(batch, "memory.reclaim") == str(50_000_000 // 4096 * 4096))  # a twentieth, no more


def test_nobody_is_ended_unless_that_is_configured(runtime: Runtime, plugin: Plugin, tree: Tree, root: Path) -> None:
    """(F5)"""
    plugin.start(config={**PERIOD, "memory_reserve": 0.2})
    runtime.register()
    batch, inner = start_pod(runtime, tree, "batch", "BE")
    tree.write(batch, "memory.current", "1000000000")
    shortage(root, 100)
    until(lambda: tree.read(batch, "memory.high") != "max")
    assert tree.read(inner, "cgroup.kill") == tree.read(batch, "cgroup.kill") == ""


def test_at_last_the_largest_offline_pod_is_ended_and_the_next_one_only_later(
    runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    """(F5)"""
    plugin.start(config={**PERIOD, "memory_reserve": 0.2, "eviction": {"after": 1, "every": 600}})
    runtime.register()
    folders, killed = {}, {}
    for name, qos, used in (("web", "LS", 900), ("small", "BE", 100), ("large", "BE", 500), ("plain", None, 800)):
        folders[name], killed[name] = start_pod(runtime, tree, name, qos, 1)
        tree.write(folders[name], "memory.current", str(used << 20))
    shortage(root, 100)
    line = plugin.wait_for("an offline pod is ended")
    assert (line["pod"], line["because"], line["bytes"]) == ("shop/large", "memory", 500 << 20)
    until(lambda: tree.read(killed["large"], "cgroup.kill") == "1")
    come_round(tree, folders["small"])
    assert {name for name, folder in killed.items() if tree.read(folder, "cgroup.kill")} == {"large"}
    assert len(plugin.lines("an offline pod is ended")) == 1


@pytest.mark.parametrize(
    ("file", "value", "is_right"),
    [
        ("io.max 8:0", "rbps=1 wiops=max", True),
        ("io.max 8:0", "rbps=0", False),
        ("io.max 8:0", "", False),
        ("io.max", "rbps=1", False),
        ("io.max ../8:0", "rbps=1", False),
        ("io.latency nvme0n1", "target=100", True),
        ("io.latency nvme0n1", "100", False),
        ("rdma.max mlx5_0", "hca_handle=0 hca_object=5", True),
        ("io.weight 8:0", "default", True),
        ("hugetlb.2MB.max", "0", True),
        ("hugetlb.2MB.max 8:0", "0", False),
        ("cpu.max 8:0", "1", False),
        ("cpu.uclamp.max", "33.5", True),
        ("cpu.qos_level", "-1", True),
        ("pids.max", "0", False),
    ],
)
def test_only_values_that_a_file_can_have_are_taken(file: str, value: str, is_right: bool) -> None:
    problems = list(knobs.check({file: value}))
    assert bool(problems) is not is_right


def test_a_line_of_a_device_is_the_same_in_any_order_of_its_words() -> None:
    assert settings.is_same("io.max 8:0", "rbps=1 wbps=max", "wbps=max rbps=1")
    assert settings.is_same("io.latency 8:0", "target=max", "target=0")
    assert not settings.is_same("io.weight 8:0", "10", "default")


def test_a_burst_is_never_more_than_the_quota_of_an_offline_pod() -> None:
    """The kernel refuses a quota below the burst."""
    assert settings.burst(100_000, 0.5) == "25000"
    assert settings.burst(10_000, 0.5) == "10000"


def test_a_disk_that_vanishes_is_not_a_cgroup_that_vanished(tree: Tree) -> None:
    tree.add("pod")
    with pytest.raises(FileNotFoundError):
        Hierarchy(tree.root).read("pod", "io.max sdx")

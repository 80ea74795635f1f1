"""The plugin process: what containers get, and what happens when something is in doubt.

Letters and numbers in parentheses are the faults of reference/nri.md section 5.
"""

import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from ubproto.nri.v1alpha1 import nri_pb2

from nri_qos import cpulist
from tests.nri_qos import nodes
from tests.nri_qos.cgroups import Tree
from tests.nri_qos.conftest import Plugin, container, pod, until
from ubsim.runtime import CallRefused, Runtime


def cpu(adjust: nri_pb2.ContainerAdjustment) -> tuple[int, str, str]:
    """Return (shares, cpus, mems) of an adjustment; zero and "" are not set."""
    made = adjust.linux.resources.cpu
    return made.shares.value, made.cpus, made.mems


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
    assert cpu_of(update) == (2, "2-7", "")
    memory_only = nri_pb2.LinuxResources(memory=nri_pb2.LinuxMemory(limit=nri_pb2.OptionalInt64(value=1 << 30)))
    assert not runtime.update("db-app-0", memory_only).update


def cpu_of(update: nri_pb2.ContainerUpdate) -> tuple[int, str, str]:
    made = update.linux.resources.cpu
    return made.shares.value, made.cpus, made.mems


def test_a_container_whose_pod_nobody_announced_is_decided_by_its_own_words(runtime: Runtime, plugin: Plugin) -> None:
    """(C10)"""
    plugin.start()
    runtime.register()
    unannounced = pod("late", "BE")
    runtime.pods[unannounced.id] = unannounced
    assert cpu(runtime.create(container(unannounced))) == (2, "0-7", "0-2")
    assert not runtime.create(nri_pb2.Container(id="x", pod_sandbox_id="nobody")).ListFields()


def test_stop_and_remove_are_fine_twice_late_and_of_strangers(runtime: Runtime, plugin: Plugin) -> None:
    """(A15, B3, B13)"""
    plugin.start()
    runtime.register()
    web = pod("web", "HLS", guaranteed=True)
    runtime.run_pod(web)
    runtime.create(container(web, cpus=2))
    stranger = nri_pb2.ContainerRequest(container=nri_pb2.Container(id="stranger", pod_sandbox_id="gone"))
    known = nri_pb2.ContainerRequest(pod=web, container=runtime.containers["web-app-0"])
    for method in ("StopContainer", "RemoveContainer", "RemoveContainer", "StopContainer", "PostStartContainer"):
        for request in (stranger, known):
            runtime.peer.call(method, request, nri_pb2.Empty)
    for method in ("StopPodSandbox", "RemovePodSandbox", "RemovePodSandbox", "StopPodSandbox"):
        for sandbox in (web, nri_pb2.PodSandbox(id="gone")):
            runtime.peer.call(method, nri_pb2.PodRequest(pod=sandbox), nri_pb2.Empty)


def test_garbage_in_a_stop_event_is_no_error(runtime: Runtime, plugin: Plugin) -> None:
    """(A15)"""
    plugin.start()
    runtime.register()
    garbage = nri_pb2.RegisterPluginRequest(plugin_name="not a container", plugin_idx="nor a pod")
    for method in ("StopContainer", "RemovePodSandbox", "CreateContainer"):
        runtime.peer.call(method, garbage, nri_pb2.Empty)


def test_a_class_that_changes_while_the_pod_runs_is_not_followed(runtime: Runtime, plugin: Plugin) -> None:
    """(C16)"""
    plugin.start()
    runtime.register()
    first = pod("web", "BE")
    runtime.run_pod(first)
    changed = pod("web", "LS")
    runtime.run_pod(changed)
    assert cpu(runtime.create(container(changed)))[0] == 2


@pytest.mark.parametrize(("failure", "refused"), [("lenient", False), ("strict", True)])
def test_a_machine_that_cannot_be_read_is_a_doubt(
    failure: str, refused: bool, runtime: Runtime, plugin: Plugin, root: Path
) -> None:
    """(C12)"""
    shutil.rmtree(root / "sys/devices")
    plugin.start(config={"failure": failure, "period": 60})
    runtime.register()
    web = pod("web", "BE")
    runtime.run_pod(web)
    if refused:
        with pytest.raises(CallRefused, match="CPUs of this node are not known"):
            runtime.create(container(web))
    else:
        assert not runtime.create(container(web)).ListFields()


def test_sysfs_that_hangs_costs_neither_the_session_nor_a_late_answer(
    runtime: Runtime, plugin: Plugin, root: Path
) -> None:
    """(A13)"""
    plugin.start(config={"period": 0.1})
    runtime.register()
    web = pod("web", "LS")
    runtime.run_pod(web)
    online = root / "sys/devices/system/cpu/online"
    online.unlink()
    os.mkfifo(online)  # opening it to read waits for a writer who never comes
    time.sleep(0.5)
    assert cpu(runtime.create(container(web)))[1] == "0-7"  # the best that is known, within the runtime's patience
    assert plugin.stop() == 0


def test_sysfs_that_hangs_from_the_start_does_not_keep_the_plugin_from_registering(
    runtime: Runtime, plugin: Plugin, root: Path
) -> None:
    """(A13)"""
    online = root / "sys/devices/system/cpu/online"
    online.unlink()
    os.mkfifo(online)
    plugin.start()
    runtime.register()
    web = pod("web", "LS")
    runtime.run_pod(web)
    assert not runtime.create(container(web)).ListFields()
    assert plugin.stop(signal.SIGTERM) == 0


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


@pytest.mark.parametrize("machine", [nodes.machine("0-3")])
def test_without_cgroup_v2_nothing_is_enforced_and_the_plugin_stays(
    runtime: Runtime, plugin: Plugin, root: Path
) -> None:
    """(D16)"""
    shutil.rmtree(root / "sys/fs/cgroup")
    (root / "sys/fs/cgroup/cpu,cpuacct").mkdir(parents=True)
    plugin.start()
    runtime.register()
    batch = pod("batch", "BE")
    runtime.run_pod(batch)
    assert not runtime.create(container(batch)).ListFields()
    assert plugin.lines("cgroup v2 is needed: decisions are reported, nothing is enforced")


def test_cpus_that_go_offline_are_given_to_nobody(runtime: Runtime, plugin: Plugin, root: Path) -> None:
    """(E4)"""
    Tree(root)
    plugin.start(config={"period": 0.1, "threshold": 1})
    runtime.register()
    nodes.put(root / "sys/devices/system/cpu/online", "0-6")
    plugin.wait_for("CPUs and NUMA nodes", 2)
    batch = pod("batch", "BE")
    runtime.run_pod(batch)
    assert cpu(runtime.create(container(batch)))[1] == "0-6"


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


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_container_whose_own_cpus_go_offline_gets_others(
    is_restarted: bool, runtime: Runtime, plugin: Plugin, root: Path
) -> None:
    """(E4)"""
    tree = Tree(root)
    plugin.start(config={"period": 0.1})
    runtime.register()
    made = pod("db", "HLS", guaranteed=True)
    tree.pod(made)
    runtime.run_pod(made)
    asked = container(made, cpus=2)
    folder = tree.container(asked, runtime.create(asked))
    runtime.start(asked.id)
    assert tree.read(folder, "cpuset.cpus") == "0-1"
    if is_restarted:
        plugin.stop(signal.SIGKILL)
        plugin.start(config={"period": 0.1})
        runtime.register()
    nodes.put(root / "sys/devices/system/cpu/online", "0,2-7")
    until(lambda: tree.read(folder, "cpuset.cpus") == "0,2")


def add_device(root: Path, where: str, numa: str, numbers: str) -> None:
    """Put a character device below a PCI device that says where it sits."""
    parent = root / "sys/devices" / where
    (parent / "misc/dev0").mkdir(parents=True)
    (parent / "numa_node").write_text(numa + "\n")
    (root / "sys/dev/char").mkdir(parents=True, exist_ok=True)
    (root / "sys/dev/char" / numbers).symlink_to(f"../../devices/{where}/misc/dev0")


def test_a_container_is_put_where_its_devices_are(runtime: Runtime, plugin: Plugin, root: Path) -> None:
    add_device(root, "pci0000:00/0000:00:01.0", "1", "10:5")
    add_device(root, "pci0000:00/0000:00:02.0", "-1", "10:6")
    plugin.start()
    runtime.register()
    for name, minor, node in (("far", 5, "1"), ("anywhere", 6, "0")):
        made = pod(name, "LS", guaranteed=False, **{"qos.unifiedbus.com/numa": "best-effort"})
        runtime.run_pod(made)
        asked = container(made, cpus=1)
        asked.linux.devices.add(path="/dev/x", type="c", major=10, minor=minor)
        assert cpu(runtime.create(asked))[2] == node


def test_only_a_pod_with_zero_copy_paths_gets_their_mounts_and_environment(
    runtime: Runtime, plugin: Plugin, root: Path
) -> None:
    plugin.start()
    runtime.register()
    given, plain = pod("given"), pod("plain")
    (root / "run/ub-node/zerocopy/pods" / given.id / "lib").mkdir(parents=True)
    (root / "run/ub-node/zerocopy/pods" / given.id / "lib/libsmc.so").touch()
    for each in (given, plain):
        runtime.run_pod(each)
    asked = container(given)
    asked.env.append("LD_PRELOAD=/theirs.so")
    adjust = runtime.create(asked)
    assert [(m.type, m.destination) for m in adjust.mounts] == [("bind", "/run/ub")]
    assert [e.key for e in adjust.env] == ["UB_PATHS"]  # what the container sets itself stays
    assert not runtime.create(container(plain)).ListFields()


class Lives:
    """Random lives of pods on a runtime."""

    def __init__(self, seed: int, runtime: Runtime) -> None:
        self.dice = random.Random(seed)
        self.runtime = runtime
        self.made = 0

    def new_pod(self) -> None:
        self.made += 1
        qos = self.dice.choice(["HLS", "HLS", "HLS", "LS", "BE"])
        self.runtime.run_pod(pod(f"p{self.made}", qos, guaranteed=True))

    def new_container(self) -> None:
        if not self.runtime.pods:
            return
        sandbox = self.runtime.pods[self.dice.choice(list(self.runtime.pods))]
        taken = {each.name for each in self.alive() if each.pod_sandbox_id == sandbox.id}
        if name := self.dice.choice([None, *sorted(set("abc") - taken)]):
            self._create(container(sandbox, name, self.dice.choice([1, 2, 3])))

    def restart_container(self) -> None:
        """The same container again under a new id, as kubelet does; it must find its CPUs again."""
        if not (alive := self.alive()):
            return
        old = self.dice.choice(alive)
        is_own = old.id in exclusive(self.runtime)
        before = old.linux.resources.cpu.cpus
        self.runtime.stop(old.id)
        again = container(self.runtime.pods[old.pod_sandbox_id], old.name, old.linux.resources.cpu.shares.value / 1024)
        self._create(again)
        assert not is_own or self.runtime.containers[again.id].linux.resources.cpu.cpus == before

    def stop_container(self) -> None:
        if alive := self.alive():
            self.runtime.stop(self.dice.choice(alive).id)

    def end_pod(self) -> None:
        if not self.runtime.pods:
            return
        gone = self.dice.choice(list(self.runtime.pods))
        for each in [c.id for c in self.runtime.containers.values() if c.pod_sandbox_id == gone]:
            self.runtime.stop(each)
            self.runtime.remove(each)
        self.runtime.stop_pod(gone)
        self.runtime.remove_pod(gone)

    def alive(self) -> list[nri_pb2.Container]:
        return [c for c in self.runtime.containers.values() if c.state != nri_pb2.CONTAINER_STOPPED]

    def _create(self, asked: nri_pb2.Container) -> None:
        self.made += 1
        asked.id = f"c{self.made}"
        self.runtime.create(asked)
        self.runtime.start(asked.id)


@pytest.mark.parametrize("seed", range(2))
def test_no_cpu_is_handed_out_twice_whatever_restarts(seed: int, runtime: Runtime, plugin: Plugin) -> None:
    """The plugin is killed and the runtime restarted between the events of random lives."""
    lives = Lives(seed, runtime)
    actions = [lives.new_pod, lives.new_container, lives.restart_container, lives.stop_container, lives.end_pod]
    plugin.start()
    runtime.register()
    for step in range(80):
        lives.dice.choice([*actions, lives.new_container, lives.new_container])()
        if step % 20 == 19:
            plugin.stop(signal.SIGKILL)
            plugin.start()
            runtime.register()
        if step % 20 == 9:
            runtime.shut_down()
            runtime.listen()
            runtime.register()
        held = exclusive(runtime)
        taken = [(runtime.containers[a].name, runtime.containers[a].pod_sandbox_id, cpus) for a, cpus in held.items()]
        for name, sandbox, cpus in taken:
            others = [theirs for other, of, theirs in taken if (other, of) != (name, sandbox)]
            assert not cpus & frozenset[int]().union(*others), f"step {step}: {taken}"


def exclusive(runtime: Runtime) -> dict[str, frozenset[int]]:
    """Return the CPUs of running HLS containers that have as many as they asked for."""
    held = {}
    for each in runtime.containers.values():
        qos = runtime.pods[each.pod_sandbox_id].annotations.get("qos.unifiedbus.com/class")
        cpus = cpulist.parse(each.linux.resources.cpu.cpus)
        is_whole = len(cpus) * 1024 == each.linux.resources.cpu.shares.value
        if qos == "HLS" and is_whole and each.state != nri_pb2.CONTAINER_STOPPED:
            held[each.id] = cpus
    return held

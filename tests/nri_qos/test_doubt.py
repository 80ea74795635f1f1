"""The plugin process where something is in doubt: strangers, garbage, a sysfs that is broken or hangs.

Letters and numbers in parentheses are the faults of reference/nri.md section 5.
"""

import contextlib
import os
import resource
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from ubproto.nri.v1alpha1 import nri_pb2

from nri_qos import serve
from tests.nri_qos import nodes
from tests.nri_qos.cgroups import Tree
from tests.nri_qos.conftest import Plugin, come_round, container, cpu, pod, start_pod, until
from ubsim.runtime import CallRefused, Runtime


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


def test_a_container_whose_pod_nobody_announced_is_decided_by_its_own_words(runtime: Runtime, plugin: Plugin) -> None:
    """(C10)"""
    plugin.start()
    runtime.register()
    unannounced = pod("late", "BE")
    runtime.pods[unannounced.id] = unannounced
    assert cpu(runtime.create(container(unannounced))) == (2, "0-7", "0-2")
    assert not runtime.create(nri_pb2.Container(id="x", pod_sandbox_id="nobody")).ListFields()


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


@contextlib.contextmanager
def other_end(pipe: Path) -> Iterator[None]:
    """Wait until the plugin reads from ``pipe``, and let nothing come."""
    ends: list[int] = []

    def is_read() -> bool:
        with contextlib.suppress(OSError):  # ENXIO: not yet
            ends.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return bool(ends)

    until(is_read)
    try:
        yield
    finally:
        os.close(ends[0])


def test_sysfs_that_hangs_costs_neither_the_session_nor_a_late_answer(
    runtime: Runtime, plugin: Plugin, root: Path
) -> None:
    """(A13)"""
    plugin.start(config={"period": 0.1})
    runtime.register()
    web = pod("web", "LS")
    runtime.run_pod(web)
    plugin.wait_for("CPUs and NUMA nodes")
    with other_end(nodes.hang(root)):
        assert cpu(runtime.create(container(web)))[1] == "0-7"  # the best that is known, within the runtime's patience
        assert plugin.stop() == 0


def test_sysfs_that_hangs_from_the_start_does_not_keep_the_plugin_from_registering(
    runtime: Runtime, plugin: Plugin, root: Path
) -> None:
    """(A13)"""
    nodes.hang(root)
    plugin.start()
    runtime.register()
    web = pod("web", "LS")
    runtime.run_pod(web)
    assert not runtime.create(container(web)).ListFields()
    assert plugin.stop(signal.SIGTERM) == 0


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


SENSELESS = {
    "sys/devices/system/cpu/online": ["", "garbage", "0-", "5-3", "0-99999999", "0\0-3"],
    "sys/devices/system/node/online": ["-", "0-9999999"],
    "sys/devices/system/node/node0/cpulist": ["zz", "0-9999999"],
    "sys/devices/system/node/node0/distance": ["a b c"],
    "sys/devices/system/node/node0/meminfo": ["junk", ""],
    "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": ["-1"],
    "var/lib/kubelet/cpu_manager_state": ["", "[1]", '"static"', '{"policyName": 5}', "[" * 200_000],
}


def test_a_machine_that_makes_no_sense_for_a_while_is_seen_again(runtime: Runtime, plugin: Plugin, root: Path) -> None:
    """(A13, C12) The last picture that made sense counts meanwhile, and trouble is told once."""
    plugin.start(config={"period": 0.1})
    runtime.register()
    web = pod("web", "LS")
    runtime.run_pod(web)
    (root / "var/lib/kubelet").mkdir(parents=True)
    for name, texts in SENSELESS.items():
        before = (root / name).read_text().strip() if (root / name).exists() else "{}"
        for text in texts:
            nodes.put(root / name, text)
            time.sleep(0.25)  # it is looked at
            assert cpu(runtime.create(container(web)))[1] == "0-7"
        nodes.put(root / name, before)
    nodes.put(root / "sys/devices/system/cpu/online", "0-5")
    nodes.put(root / "var/lib/kubelet/cpu_manager_state", '{"policyName": "static"}')
    until(lambda: (line := plugin.lines("CPUs and NUMA nodes")[-1])["cpus"] == "0-5" and line["kubelet_is_static"])
    assert cpu(runtime.create(container(web)))[1] == "0-5"
    assert len(plugin.lines("this node's CPUs cannot be read")) <= sum(map(len, SENSELESS.values()))


def test_out_of_descriptors_it_answers_on_and_comes_back_by_itself(
    runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    """(A13) Neither the session nor a thread is lost."""
    plugin.start(config={"period": 0.1})
    runtime.register()
    batch, _ = start_pod(runtime, tree, "batch", "BE")
    come_round(tree, batch)
    process = plugin.process.pid
    used = {int(name.name) for name in Path(f"/proc/{process}/fd").iterdir()}
    limit = next(number for number in count() if number not in used), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    before = resource.prlimit(process, resource.RLIMIT_NOFILE, limit)
    web = pod("web", "LS")
    runtime.run_pod(web)
    assert cpu(runtime.create(container(web)))[1] == "0-7"
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(root / "run/ub-node/nri-qos.sock"))
        time.sleep(0.5)
    resource.prlimit(process, resource.RLIMIT_NOFILE, before)
    nodes.put(root / "sys/devices/system/cpu/online", "0-5")
    until(lambda: plugin.lines("CPUs and NUMA nodes")[-1]["cpus"] == "0-5")
    assert serve.ask(root / "run/ub-node")["state"]["nri_synchronized"]
    come_round(tree, batch)


def test_a_hierarchy_that_is_gone_for_a_while_is_told_once_and_worked_with_again(
    runtime: Runtime, plugin: Plugin, tree: Tree
) -> None:
    """(D12, D13)"""
    plugin.start(config={"period": 0.1})
    runtime.register()
    batch, _ = start_pod(runtime, tree, "batch", "BE")
    come_round(tree, batch)
    away = tree.root.with_name("away")
    tree.root.rename(away)
    plugin.wait_for("the loop cannot work")
    time.sleep(1)
    away.rename(tree.root)
    come_round(tree, batch)
    assert len(plugin.lines("the loop cannot work")) == 1
    assert "trace" not in plugin.lines("the loop cannot work")[0]

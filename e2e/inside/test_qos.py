"""nri-qos with a real containerd: what containers get in the real cgroup v2 tree."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.inside.cri import Container, Resources, Runtime
from e2e.inside.programs import Daemon, daemon

CLASS = "qos.unifiedbus.com/class"
NUMA = "qos.unifiedbus.com/numa"
CPUS_OF = {0: {0, 1}, 1: {2, 3}}  # node 2 has memory only
HALF = Resources(cpu_request_m=500, cpu_limit_m=4000)
ONE_OWN = Resources(cpu_request_m=1000, cpu_limit_m=1000, memory_limit=64 << 20)
UNMANAGED_WEIGHT = 20  # runc's cpu.weight of 512 shares


def cpus(text: str) -> set[int]:
    """Return the CPUs of a kernel list such as ``0-1,3``."""
    bounds = [part.split("-") for part in text.split(",") if part]
    return {cpu for first, *last in bounds for cpu in range(int(first), int((last or [first])[0]) + 1)}


def start(runtime: Runtime, name: str, qos: str, resources: Resources, numa: str = "none") -> Container:
    pod = runtime.run_pod(name, annotations={CLASS: qos, NUMA: numa}, resources=resources, host_network=True)
    return runtime.run_container(pod, resources=resources)


def check_offline(container: Container) -> None:
    assert int(container.knob("cpu.weight")) == 1, "an offline container has the least weight"
    assert container.knob("cpuset.cpus"), "an offline container is bound to the CPUs that are left"


def check_own_cpu(container: Container, others: list[Container]) -> None:
    own = cpus(container.knob("cpuset.cpus"))
    assert len(own) == 1, "it asked for one CPU"
    (node,) = (node for node, of_node in CPUS_OF.items() if own <= of_node)
    assert container.knob("cpuset.mems") == str(node), "its memory is on the node of its CPU"
    for other in others:
        assert not own & cpus(other.knob("cpuset.cpus.effective")), "nobody else runs there"


def check_local_memory(container: Container) -> None:
    assert container.knob("cpuset.mems") in ("0", "1", "0-1"), "online memory is never on the node without CPUs"


@pytest.fixture
def nri_qos(tmp_path: Path) -> Iterator[Daemon]:
    config = tmp_path / "nri-qos.yaml"
    config.write_text("period: 1.0\nfloor: 1\n")
    # NRI, cgroups and NUMA are the node's own: no simulated root here.
    with daemon("nri-qos", "--config", str(config), env={"UB_ROOT": "/"}) as running:
        running.wait_for("synchronized with the runtime")
        yield running


def test_online_and_offline_containers_share_the_node_as_promised(runtime: Runtime, nri_qos: Daemon) -> None:
    offline = start(runtime, "offline", "BE", HALF)
    shared = start(runtime, "shared", "LS", HALF)
    own = start(runtime, "own", "HLS", ONE_OWN, numa="single-numa-node")
    late = start(runtime, "late", "BE", HALF)
    check_offline(late)
    check_own_cpu(own, [late])
    check_local_memory(shared)
    assert int(shared.knob("cpu.weight")) == UNMANAGED_WEIGHT, "online containers keep the weight they asked for"
    check_offline(offline)


def test_after_a_restart_of_containerd_new_containers_are_placed_and_old_ones_respected(
    runtime: Runtime, nri_qos: Daemon
) -> None:
    own = start(runtime, "own", "HLS", ONE_OWN, numa="single-numa-node")
    subprocess.run(["systemctl", "restart", "containerd"], check=True)
    nri_qos.wait_for("synchronized with the runtime", times=2)
    runtime.wait_until_ready()
    late = start(runtime, "late", "BE", HALF)
    check_offline(late)
    check_own_cpu(own, [late])


def test_the_checks_of_this_file_fail_when_no_plugin_runs(runtime: Runtime) -> None:
    """The negative control: without nri-qos each promise is broken, so a plugin that does nothing turns them red."""
    offline = start(runtime, "offline", "BE", HALF)
    own = start(runtime, "own", "HLS", ONE_OWN)
    with pytest.raises(AssertionError):
        check_offline(offline)
    with pytest.raises(AssertionError):
        check_own_cpu(own, [offline])
    with pytest.raises(AssertionError):
        check_local_memory(own)

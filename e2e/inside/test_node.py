"""The node itself, before any plugin of ours: what the other tests take for granted."""

from pathlib import Path

from e2e.inside.cri import Resources, Runtime
from e2e.inside.network import BRIDGE, PORTMAP, write_conflist

NODES = Path("/sys/devices/system/node")


def test_the_node_has_two_sockets_and_a_memory_node_without_cpus() -> None:
    assert (NODES / "has_cpu").read_text().strip() == "0-1"
    assert (NODES / "has_memory").read_text().strip() == "0-2"
    assert (NODES / "node0/distance").read_text().split() == ["10", "21", "80"]


def test_cgroups_are_version_2_with_the_controllers_that_qos_needs() -> None:
    controllers = Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    assert {"cpu", "cpuset", "io", "memory", "pids", "rdma"} <= set(controllers)


def test_pods_of_the_cluster_network_reach_one_another(runtime: Runtime) -> None:
    write_conflist(BRIDGE, PORTMAP)
    server, client = runtime.run_pod("server"), runtime.run_pod("client")
    container = runtime.run_container(client)
    code, said = runtime.execute(container, "ping", "-c1", "-W5", server.ip)
    assert code == 0, said


def test_a_guaranteed_pod_lives_in_the_slice_that_the_kubelet_would_choose(runtime: Runtime) -> None:
    write_conflist(BRIDGE, PORTMAP)
    wanted = Resources(cpu_request_m=1000, cpu_limit_m=1000, memory_limit=64 << 20)
    container = runtime.run_container(runtime.run_pod("sized", resources=wanted), resources=wanted)
    assert container.cgroup.parent.name.startswith("kubepods-pod")
    assert container.knob("cpu.max") == "100000 100000"

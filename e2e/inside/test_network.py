"""ub-cni with a real containerd: pods of the cluster network that also hold a UB device.

The UB host is simulated; containerd, namespaces, links, addresses and cgroups are real (level: stand-in).
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from e2e.inside.cri import Pod, Runtime
from e2e.inside.host import Belongings, admit, agent_and_kubelet, attachments, eids_in, simulated_host, ubnode
from e2e.inside.network import BRIDGE, PORTMAP, install_plugin, links, network_outside, write_conflist
from e2e.inside.programs import BUNDLE, wait_until
from ubsim.kubelet import Kubelet

DEVICES = 4
DEVICE = "urma_1"
KERNEL_DEVICES = {"bonding_dev_1", "udma2", "udma3"}  # urma_1: a bonding device over one entity on each die
EIDS = 21  # 1 of the bonding device, 10 of each entity
NOTHING = """#!/usr/bin/python3
import json, os, sys
if os.environ["CNI_COMMAND"] == "ADD":
    print(json.dumps(json.load(sys.stdin)["prevResult"]))
"""


@pytest.fixture(scope="module", autouse=True)
def ub_host() -> Iterator[None]:
    install_plugin("ub-cni", BUNDLE / "ub-cni")
    with simulated_host(DEVICES):
        yield


@pytest.fixture(scope="module")
def kubelet(ub_host: None) -> Iterator[Kubelet]:
    """The node daemon runs, as on any node, and a kubelet knows its devices."""
    with agent_and_kubelet(DEVICES) as kubelet:
        yield kubelet


def ub_cni(device: str = DEVICE) -> dict[str, object]:
    return {"type": "ub-cni", "deviceID": device}


def check_holds_device(pod: Pod) -> None:
    """The pod has the device: in its namespace by the driver's own view, and as a link that left the host."""
    seen = eids_in(pod)
    assert set(seen) >= KERNEL_DEVICES, "the kernel devices are exposed in the pod's namespace"
    assert sum(len(eids) for eids in seen.values()) == EIDS, "and their EIDs belong to it"
    assert "ub0" in links(pod.netns), "the device's netdev is in the pod"
    assert "ipourma1" not in links(), "and not on the host"


def check_reaches(runtime: Runtime, client: Pod, server: Pod) -> None:
    code, said = runtime.execute(runtime.run_container(client), "ping", "-c1", "-W5", server.ip)
    assert code == 0, said


def test_a_pod_gets_its_device_and_gives_everything_back(runtime: Runtime) -> None:
    """With no agent on the node: ub-cni does all the work itself."""
    write_conflist(BRIDGE, ub_cni())
    before = Belongings.now()
    pod = runtime.run_pod("with-device")
    check_holds_device(pod)
    (holder,) = attachments()
    assert (holder["device"], holder["container"]) == (DEVICE, pod.id)
    assert pod.ip.startswith("10.88."), "eth0 stays the pod's address"
    runtime.remove_pod(pod)
    assert Belongings.now().differs_from(before) == []


def test_the_kubelet_chooses_the_device_and_clients_outside_still_reach_the_pod(
    runtime: Runtime, kubelet: Kubelet
) -> None:
    """The whole of a production node: device plugin, PodResources, agent, one conflist, a host port."""
    write_conflist(BRIDGE, {"type": "ub-cni"}, PORTMAP)
    before = Belongings.now()
    device = admit(kubelet, "web")
    pod = runtime.run_pod("web", host_ports={8080: 80})
    (holder,) = attachments()
    assert (holder["device"], holder["pod"]) == (device, "default/web")
    assert "ub0" in links(pod.netns)
    runtime.run_container(pod, "sh", "-c", "echo hello >/tmp/index.html && httpd -f -p 80 -h /tmp")
    outside = ("ip", "netns", "exec", "outside", "busybox", "wget", "-q", "-O-", "http://192.0.2.1:8080/")
    with network_outside("outside", node="192.0.2.1/30", client="192.0.2.2/30"):
        wait_until(lambda: subprocess.run(outside, capture_output=True, check=False).stdout == b"hello\n", "HTTP")
    runtime.remove_all()
    kubelet.remove("default/web")
    assert Belongings.now().differs_from(before) == []


def test_a_second_pod_reaches_the_pod_with_the_device(runtime: Runtime) -> None:
    write_conflist(BRIDGE, ub_cni())
    before = Belongings.now()
    server = runtime.run_pod("server")
    write_conflist(BRIDGE, {"type": "ub-cni"})  # nobody names a device: the list serves any pod
    client = runtime.run_pod("client")
    assert set(links(client.netns)) == {"lo", "eth0"}
    check_reaches(runtime, client, server)
    runtime.remove_all()
    assert Belongings.now().differs_from(before) == []


def test_a_device_is_not_given_to_two_pods(runtime: Runtime) -> None:
    write_conflist(BRIDGE, ub_cni())
    before = Belongings.now()
    holder = runtime.run_pod("first")
    with pytest.raises(grpc.RpcError, match=f"{DEVICE}.*{holder.id}"):
        runtime.run_pod("second")
    check_holds_device(holder)
    runtime.remove_all()
    assert Belongings.now().differs_from(before) == []


def test_deleting_twice_and_after_the_namespace_is_gone_is_no_error(runtime: Runtime) -> None:
    write_conflist(BRIDGE, ub_cni())
    before = Belongings.now()
    pod = runtime.run_pod("stopped-twice")
    runtime.stop_pod(pod)
    runtime.stop_pod(pod)
    runtime.remove_pod(pod)
    assert Belongings.now().differs_from(before) == []


def test_the_command_line_names_the_pod_that_holds_a_device(runtime: Runtime) -> None:
    write_conflist(BRIDGE, ub_cni())
    runtime.run_pod("named")
    assert "default/named" in ubnode("attachments")
    assert json.loads(ubnode("show", "devices", "--json"))["provider"] == "sim"


def test_the_checks_of_this_file_fail_with_a_plugin_that_does_nothing(runtime: Runtime, tmp_path: Path) -> None:
    """The negative control: in place of ub-cni a program that passes prevResult through turns the check red."""
    nothing = tmp_path / "nothing"
    nothing.write_text(NOTHING)
    nothing.chmod(0o755)
    install_plugin("ub-nothing", nothing)
    write_conflist(BRIDGE, {**ub_cni(), "type": "ub-nothing"})
    pod = runtime.run_pod("without-device")
    with pytest.raises(AssertionError):
        check_holds_device(pod)

"""What pods asked for and what comes through: rates that ub-cni sets, measured between two pods.

The devices are simulated, their netdevs are veths on one bridge; tbf, ifb and TCP are the kernel's. A rate here says
that the limit holds, nothing about how fast a device is.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.inside.cri import Pod, Runtime
from e2e.inside.host import ROOT, Belongings, simulated_host
from e2e.inside.network import BRIDGE, in_netns, install_plugin, write_conflist
from e2e.inside.programs import BUNDLE, wait_until

SECONDS = "4"
MBIT = 1_000_000
IPAM = {"type": "host-local", "ranges": [[{"subnet": "10.61.0.0/24"}]]}


@pytest.fixture(scope="module", autouse=True)
def ub_host() -> Iterator[None]:
    install_plugin("ub-cni", BUNDLE / "ub-cni")
    subprocess.run(["modprobe", "-a", "sch_tbf", "sch_ingress", "ifb", "act_mirred", "cls_matchall"], check=True)
    with simulated_host(3):
        yield


def run(runtime: Runtime, name: str, device: str, **annotations: str) -> tuple[Pod, str]:
    """Run a pod with a UB device on the network 10.61; return it and its address there."""
    write_conflist(BRIDGE, {"type": "ub-cni", "deviceID": device, "ipam": IPAM, "capabilities": {"bandwidth": True}})
    named = {f"kubernetes.io/{key}-bandwidth": rate for key, rate in annotations.items()}
    pod = runtime.run_pod(name, annotations=named)
    return pod, address(pod, "ub0")


def address(pod: Pod, link: str) -> str:
    (found,) = json.loads(in_netns(pod.netns, "ip", "-json", "-4", "address", "show", "dev", link))
    return str(found["addr_info"][0]["local"])


def second_interface(verb: str, pod: Pod, device: str, mbps: int) -> None:
    """Call ub-cni for one more interface of a pod on the same network, as Multus does. 0 Mb/s: without a limit."""
    conf: dict[str, Any] = {
        "cniVersion": "1.0.0",
        "name": "cluster",
        "type": "ub-cni",
        "deviceID": device,
        "ipam": IPAM,
    }
    conf["runtimeConfig"] = {"bandwidth": {"ingressRate": mbps * MBIT, "egressRate": mbps * MBIT} if mbps else {}}
    environ = {
        "PATH": os.environ["PATH"], "UB_ROOT": str(ROOT), "CNI_COMMAND": verb, "CNI_CONTAINERID": pod.id,
        "CNI_NETNS": str(pod.netns), "CNI_IFNAME": "ub1", "CNI_PATH": "/opt/cni/bin",
    }  # fmt: skip
    done = subprocess.run([BUNDLE / "ub-cni"], input=json.dumps(conf).encode(), env=environ, capture_output=True)
    assert done.returncode == 0, done.stdout


def tell_interfaces_apart(pod: Pod, *links: str) -> None:
    """Let each interface answer for its own address and send what comes from it: Linux takes them for one host's."""
    for link in links:
        number = 100 + int(link[-1])
        for key, value in (("arp_ignore", 1), ("arp_announce", 2)):
            in_netns(pod.netns, "sysctl", "-qw", f"net.ipv4.conf.{link}.{key}={value}")
        in_netns(pod.netns, "ip", "rule", "add", "from", address(pod, link), "table", str(number))
        in_netns(pod.netns, "ip", "route", "replace", "10.61.0.0/24", "dev", link, "table", str(number))


def rate(sender: Pod, source: str, receiver: Pod, target: str) -> float:
    """Return how many Mb/s a TCP stream brings from one address to another."""
    stream = ("python3", "-m", "e2e.inside.stream")
    listen = ["nsenter", f"--net={receiver.netns}", *stream, "receive", "7100", SECONDS]
    send = ["nsenter", f"--net={sender.netns}", *stream, "send", target, "7100", source]
    with subprocess.Popen(listen, stdout=subprocess.PIPE, cwd="/mnt/payload") as receiving:
        wait_until(lambda: ":7100 " in in_netns(receiver.netns, "ss", "-ltn"), "the receiver listens")
        with subprocess.Popen(send, cwd="/mnt/payload") as sending:
            assert receiving.stdout
            line = receiving.stdout.readline()
            sending.kill()
        receiving.wait(60)
    return float(json.loads(line)["mbps"])


def check_rate(found: float, asked: float) -> None:
    assert asked * 0.9 <= found <= asked * 1.1, f"asked for {asked} Mb/s, measured {found:.1f}"


def test_each_interface_of_a_pod_sends_and_receives_as_fast_as_was_asked_for_it(runtime: Runtime) -> None:
    """Low rates: a machine that pauses for longer than a bucket holds (64 KiB) cannot reach a high one."""
    before = Belongings.now()
    pod, first = run(runtime, "limited", "urma_1", ingress="9M", egress="6M")
    free, others = run(runtime, "free", "urma_2")
    second_interface("ADD", pod, "urma_3", 12)
    tell_interfaces_apart(pod, "ub0", "ub1")
    second = address(pod, "ub1")
    check_rate(rate(pod, first, free, others), 6)
    check_rate(rate(free, others, pod, first), 9)
    check_rate(rate(pod, second, free, others), 12)
    check_rate(rate(free, others, pod, second), 12)
    second_interface("DEL", pod, "urma_3", 12)
    second_interface("ADD", pod, "urma_3", 0)
    tell_interfaces_apart(pod, "ub1")
    assert rate(pod, address(pod, "ub1"), free, others) > 2 * 12, "the control: the machine can do more than it was let"
    check_rate(rate(pod, first, free, others), 6)
    second_interface("DEL", pod, "urma_3", 0)
    runtime.remove_all()
    assert Belongings.now().differs_from(before) == []

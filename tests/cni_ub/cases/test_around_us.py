"""E. Runtime, kernel and other plugins: what happens around a call."""

import os
import signal
import subprocess
from typing import Any

import pytest

from tests.cni_ub.machine import ip
from tests.cni_ub.node import SimulatedNode, attach
from tests.waiting import wait_for

pytestmark = pytest.mark.kernel


def test_h45_links_that_come_and_go_do_not_disturb(node: SimulatedNode, pod: str) -> None:
    script = "while :; do ip link add churn0 type veth peer name churn1; ip link del churn0; done"
    churn = subprocess.Popen(["sh", "-c", script], start_new_session=True)
    try:
        for _ in range(10):
            attach(node, pod)
            assert node.call("DEL", node.conf(), pod=pod).code == 0
    finally:
        os.killpg(churn.pid, signal.SIGKILL)
        churn.wait()
        subprocess.run(["ip", "link", "del", "churn0"], check=False, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_h48_an_add_that_is_killed_while_ipam_works(node: SimulatedNode, pod: str, number: signal.Signals) -> None:
    before = node.state()
    node.ipam.order("sleep", "ADD", "1")
    started = node.start("ADD", node.conf(), pod=pod)
    wait_for(lambda: node.ipam.calls == ["ADD"])
    started.process.send_signal(number)
    answer = started.wait()
    assert answer.code != 0
    node.ipam.obey_no_more()
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    assert (node.state(), node.names_in(pod)) == (before, {"lo"})
    attach(node, node.new_pod("pod-2"), container="c2")


@pytest.mark.parametrize("path", ["/nowhere/log", "/dev/full", "/proc/self/status"])
def test_h50_a_log_that_cannot_be_written_fails_nothing(node: SimulatedNode, pod: str, path: str) -> None:
    assert attach(node, pod, logFile=path, logLevel="debug")


def test_h51_in_a_chain_the_others_are_left_as_they_were(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    ip("-n pod-1 link add eth0 type veth peer name other-end")
    previous: dict[str, Any] = {
        "cniVersion": "1.0.0",
        "interfaces": [
            {"name": "cni0"},
            {"name": "veth12"},
            {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": pod},
        ],
        "ips": [{"address": "10.1.0.2/16", "gateway": "10.1.0.1", "interface": 2}],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dns": {"nameservers": ["10.1.0.10"]},
    }
    conf = node.conf(cniVersion="1.0.0", prevResult=previous)
    added = node.call("ADD", conf, pod=pod, ifname="eth0").document
    assert added["interfaces"][:3] == previous["interfaces"]
    assert (added["interfaces"][3]["name"], added["interfaces"][3]["sandbox"]) == ("ub0", pod)
    assert added["ips"][0] == previous["ips"][0]
    assert added["ips"][1]["interface"] == 3
    assert (added["dns"], added["routes"][0]) == (previous["dns"], previous["routes"][0])
    assert node.call("CHECK", {**conf, "prevResult": added}, pod=pod, ifname="eth0").code == 0
    assert node.call("DEL", {**conf, "prevResult": added}, pod=pod, ifname="eth0").code == 0
    assert node.state() == before


def test_h52_an_attachment_that_nobody_deletes_is_healed_by_the_next_add(node: SimulatedNode, pod: str) -> None:
    attach(node, pod)
    node.kill_pod("pod-1")
    second = node.new_pod("pod-2")
    wait_for(lambda: node.call("ADD", node.conf(), pod=second, container="c2").code == 0)
    assert node.ledger == ["urma_1@c2@net1.json"]


def test_h53_an_ipv6_address_is_usable_at_once(node: SimulatedNode, pod: str) -> None:
    node.ipam.order("answer", "ADD", '{"cniVersion": "1.0.0", "ips": [{"address": "fd00:77::5/64"}]}')
    attach(node, pod)
    shown = subprocess.run(
        ["ip", "-n", "pod-1", "-6", "addr", "show", "dev", "net1", "scope", "global"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "fd00:77::5/64" in shown.stdout
    assert "tentative" not in shown.stdout

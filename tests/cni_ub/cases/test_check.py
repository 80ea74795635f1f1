"""D. CHECK finds what drifted, and nothing else."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cni_ub.machine import ip
from tests.cni_ub.node import SimulatedNode, attach

pytestmark = pytest.mark.kernel


def test_h38_a_delegate_that_does_not_know_check_is_no_drift(node: SimulatedNode, pod: str) -> None:
    result = attach(node, pod)
    for words in ("unknown CNI_COMMAND: CHECK", "CNI CHECK method is not implemented"):
        node.ipam.order("fail", "CHECK", json.dumps({"code": 4, "msg": words}))
        assert node.call("CHECK", node.conf(prevResult=result), pod=pod).code == 0
    node.ipam.order("fail", "CHECK", '{"code": 17, "msg": "reservation lost"}')
    assert "reservation lost" in node.call("CHECK", node.conf(prevResult=result), pod=pod).error[1]


DRIFTS = {
    "address": "-n pod-1 addr del 10.77.0.5/24 dev net1",
    "link down": "-n pod-1 link set net1 down",
    "route": "-n pod-1 route del 10.99.0.0/16",
    "link renamed": "-n pod-1 link set net1 name other",
    "mtu": "-n pod-1 link set net1 mtu 1200",
}


@pytest.mark.parametrize("drift", DRIFTS)
def test_h40_check_finds_real_drift(node: SimulatedNode, pod: str, drift: str) -> None:
    result = attach(node, pod)
    assert node.call("CHECK", node.conf(prevResult=result), pod=pod).stdout == b""
    ip(DRIFTS[drift])
    code, message = node.call("CHECK", node.conf(prevResult=result), pod=pod).error
    assert code == 104
    assert "urma_1" in message or "net1" in message


@pytest.mark.parametrize("mischief", ["tc -n pod-1 qdisc del dev net1 root", "tc -n pod-1 qdisc del dev net1 ingress"])
def test_h40_check_finds_shaping_that_is_gone(node: SimulatedNode, pod: str, mischief: str) -> None:
    shaped: dict[str, Any] = {"runtimeConfig": {"bandwidth": {"ingressRate": 80_000_000, "egressRate": 80_000_000}}}
    result = attach(node, pod, **shaped)
    conf = node.conf(prevResult=result, **shaped)
    assert node.call("CHECK", conf, pod=pod).code == 0
    subprocess.run(mischief.split(), check=True)
    assert node.call("CHECK", conf, pod=pod).error[0] == 104


def test_h40_check_finds_a_device_that_was_taken_away(node: SimulatedNode, pod: str) -> None:
    result = attach(node, pod)
    node.take_away("bonding_dev_1", pod)
    code, message = node.call("CHECK", node.conf(prevResult=result), pod=pod).error
    assert (code, "bonding_dev_1" in message) == (104, True)


def test_h40_check_tolerates_what_later_plugins_changed(node: SimulatedNode, pod: str) -> None:
    result = attach(node, pod)
    ip("-n pod-1 link set net1 mtu 1300")
    ip("-n pod-1 route add 10.100.0.0/16 dev net1")
    ip("-n pod-1 addr add 10.77.0.9/24 dev net1")
    ip("-n pod-1 route del 10.99.0.0/16")
    result["interfaces"][0]["mtu"] = 1300
    result["routes"] = [{"dst": "10.100.0.0/16"}]
    assert node.call("CHECK", node.conf(prevResult=result), pod=pod).code == 0


def test_h40_check_compares_namespaces_by_what_they_are(node: SimulatedNode, pod: str) -> None:
    result = attach(node, pod)
    with Path(pod).open("rb") as held:
        same = f"/proc/{os.getpid()}/fd/{held.fileno()}"
        assert node.call("CHECK", node.conf(prevResult=result), pod=same).code == 0
    other = node.new_pod("pod-2")
    assert node.call("CHECK", node.conf(prevResult=result), pod=other).code == 1


def test_h40_check_needs_prevresult_and_an_attachment(node: SimulatedNode, pod: str) -> None:
    assert node.call("CHECK", node.conf(), pod=pod).error[0] == 7
    previous = {"cniVersion": "1.1.0", "interfaces": [{"name": "net1", "sandbox": pod}]}
    assert node.call("CHECK", node.conf(prevResult=previous), pod=pod).error[0] == 3

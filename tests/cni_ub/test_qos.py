"""Bandwidth and service levels, through the executable, with the agent at work."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cni_ub.machine import ip
from tests.cni_ub.node import SimulatedNode
from ubhost.provider import Bandwidth

pytestmark = pytest.mark.kernel

MBIT = 1_000_000
ENDLESS = 0xFFFFFFFF


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedNode]:
    running = SimulatedNode.up(tmp_path_factory.mktemp("n"), 2)
    running.start_agent()
    yield running
    running.down()


@pytest.fixture
def node(shared_node: SimulatedNode) -> Iterator[SimulatedNode]:
    before = shared_node.state()
    shared_node.new_pod("pod-1")
    yield shared_node
    shared_node.ipam.obey_no_more()
    for ifname in ("net1", "net2"):
        assert shared_node.call("DEL", shared_node.conf(), pod="/run/netns/pod-1", ifname=ifname).code == 0
    assert shared_node.names_in("/run/netns/pod-1") == {"lo"}
    shared_node.kill_pod("pod-1")
    assert shared_node.state() == before


POD = "/run/netns/pod-1"


def buckets(name: str) -> dict[str, tuple[int, int]]:
    """Return rate (bits a second) and burst (bytes) of every bucket in the pod, by link; as tc shows them."""
    command = ["tc", "-n", name, "-j", "qdisc", "show"]
    shown = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return {q["dev"]: (q["options"]["rate"] * 8, q["options"]["burst"]) for q in shown if q["kind"] == "tbf"}


def limited(node: SimulatedNode, device: str = "urma_1", **bandwidth: int) -> dict[str, Any]:
    return node.conf(device, runtimeConfig={"bandwidth": bandwidth})


def test_a_rate_without_a_burst_limits_both_ways(node: SimulatedNode) -> None:
    conf = limited(node, ingressRate=80 * MBIT, egressRate=40 * MBIT)
    result = node.call("ADD", conf, pod=POD).document
    found = buckets("pod-1")
    (shaper,) = found.keys() - {"net1"}
    assert {name: rate for name, (rate, _) in found.items()} == {"net1": 40 * MBIT, shaper: 80 * MBIT}
    assert found["net1"][1] == pytest.approx(64 << 10, rel=0.02)
    assert found[shaper][1] == pytest.approx(100_000, rel=0.02)
    assert node.call("CHECK", {**conf, "prevResult": result}, pod=POD).code == 0


@pytest.mark.parametrize("burst", [0, ENDLESS])
def test_an_endless_burst_is_no_burst(node: SimulatedNode, burst: int) -> None:
    assert node.call("ADD", limited(node, egressRate=40 * MBIT, egressBurst=burst), pod=POD).code == 0
    assert buckets("pod-1")["net1"][1] < 1 << 20


def test_a_burst_of_its_own_is_kept(node: SimulatedNode) -> None:
    assert node.call("ADD", limited(node, egressRate=40 * MBIT, egressBurst=8 * MBIT), pod=POD).code == 0
    assert buckets("pod-1")["net1"][1] == pytest.approx(MBIT, rel=0.02)


def test_two_interfaces_of_a_pod_have_limits_of_their_own(node: SimulatedNode) -> None:
    assert node.call("ADD", limited(node, ingressRate=16 * MBIT), pod=POD).code == 0
    node.ipam.order("answer", "ADD", '{"cniVersion": "1.0.0", "ips": [{"address": "10.78.0.5/24"}]}')
    second = limited(node, "urma_2", ingressRate=32 * MBIT)
    assert node.call("ADD", second, pod=POD, ifname="net2").code == 0
    assert sorted(rate for rate, _ in buckets("pod-1").values()) == [16 * MBIT, 32 * MBIT]
    assert node.call("DEL", second, pod=POD, ifname="net2").code == 0
    assert [rate for rate, _ in buckets("pod-1").values()] == [16 * MBIT]


@pytest.mark.parametrize("mischief", ["tc -n pod-1 qdisc del dev net1 root", "tc -n pod-1 qdisc del dev net1 ingress"])
def test_check_finds_a_limit_that_was_taken_off(node: SimulatedNode, mischief: str) -> None:
    conf = limited(node, ingressRate=80 * MBIT, egressRate=40 * MBIT)
    result = node.call("ADD", conf, pod=POD).document
    subprocess.run(mischief.split(), check=True)
    code, message = node.call("CHECK", {**conf, "prevResult": result}, pod=POD).error
    assert (code, "Limit" in message) == (104, True)


def test_a_limited_link_comes_home_without_a_limit(node: SimulatedNode) -> None:
    conf = limited(node, ingressRate=80 * MBIT, egressRate=40 * MBIT)
    assert node.call("ADD", conf, pod=POD).code == 0
    assert node.call("DEL", conf, pod=POD).code == 0
    shown = json.loads(subprocess.run(["tc", "-j", "qdisc", "show", "dev", "ipourma1"], capture_output=True).stdout)
    assert {q["kind"] for q in shown} <= {"noqueue", "pfifo_fast"}


def test_the_device_itself_is_limited_by_its_driver(node: SimulatedNode) -> None:
    assert node.call("ADD", node.conf(qos={"minMbps": 80, "maxMbps": 800}), pod=POD).code == 0
    assert node.limits()["urma_1"] == Bandwidth(80, 800)
    assert buckets("pod-1") == {}


@pytest.mark.parametrize(
    ("qos", "words"),
    [
        ({"maxMbps": 801}, "8"),
        ({"minMbps": 800, "maxMbps": 80}, "minMbps"),
        ({"maxMbps": "fast"}, "maxMbps"),
        ({"serviceLevel": 16}, "serviceLevel"),
    ],
)
def test_what_the_driver_cannot_do_is_refused_in_words(node: SimulatedNode, qos: dict[str, Any], words: str) -> None:
    code, message = node.call("ADD", node.conf(qos=qos), pod=POD).error
    assert (code, words in message) == (7, True)
    assert node.ledger == []


def test_a_bandwidth_without_a_netdev_is_refused(node: SimulatedNode) -> None:
    conf = {**limited(node, egressRate=40 * MBIT), "netdev": "none"}
    del conf["ipam"]
    assert node.call("ADD", conf, pod=POD).error[0] == 7


def test_a_limited_pod_that_renamed_its_link_leaves_nothing(node: SimulatedNode) -> None:
    conf = limited(node, ingressRate=80 * MBIT)
    assert node.call("ADD", conf, pod=POD).code == 0
    ip("-n pod-1 link set net1 name mine")
    assert node.call("DEL", conf, pod=POD).code == 0
    assert node.names_in(POD) == {"lo"}

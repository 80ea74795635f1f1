"""Many calls at once: nobody's device, address or interface is mixed up with another's, and nobody waits for all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cni_ub.node import Call, SimulatedNode
from tests.waiting import wait_for

pytestmark = pytest.mark.kernel

CROWD = 16


@pytest.fixture(scope="module", params=["alone", "agent"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedNode]:
    running = SimulatedNode.up(tmp_path_factory.mktemp("n"), CROWD)
    if request.param == "agent":
        running.start_agent()
    yield running
    running.down()


def test_sixteen_pods_are_attached_and_detached_at_once(node: SimulatedNode, tmp_path: Path) -> None:
    before = node.state()
    pods = {number: node.new_pod(f"pod-{number}") for number in range(1, CROWD + 1)}
    ipam = {"type": "host-local", "dataDir": str(tmp_path), "ranges": [[{"subnet": "10.66.0.0/24"}]]}

    def start(verb: str, number: int) -> Call:
        conf = node.conf(f"urma_{number}", ipam=ipam)
        return node.start(verb, conf, pod=pods[number], container=f"c{number}")

    adds = {number: start("ADD", number) for number in pods}
    answers = {number: call.wait() for number, call in adds.items()}
    assert [answer.code for answer in answers.values()] == [0] * CROWD, answers
    netdevs = before[1]
    addresses = set()
    for number, answer in answers.items():
        interface = answer.document["interfaces"][0]
        assert interface["sandbox"] == pods[number]
        assert interface["mac"] == netdevs[f"ipourma{number}"][1]
        link = node.link_in(pods[number], "net1")
        assert link
        assert link.mac == interface["mac"]
        addresses.add(answer.document["ips"][0]["address"])
    assert len(addresses) == CROWD
    assert node.exposed() == {f"urma_{number}": 1 for number in pods}

    dels = [start("DEL", number) for number in pods]
    assert [call.wait().code for call in dels] == [0] * CROWD
    assert node.state() == before
    for number in pods:
        node.kill_pod(f"pod-{number}")


def test_a_slow_delegate_holds_up_its_own_call_only(node: SimulatedNode) -> None:
    slow, quick = node.new_pod("slow"), node.new_pod("quick")
    node.ipam.order("sleep", "ADD", "4")
    waiting = node.start("ADD", node.conf("urma_1"), pod=slow, container="slow")
    wait_for(lambda: "ADD" in node.ipam.calls)
    conf = node.conf("urma_2")
    del conf["ipam"]
    assert node.call("ADD", conf, pod=quick, container="quick").code == 0
    assert waiting.process.poll() is None
    assert waiting.wait().code == 0
    node.ipam.obey_no_more()
    assert node.call("DEL", conf, pod=quick, container="quick").code == 0
    assert node.call("DEL", node.conf(), pod=slow, container="slow").code == 0
    node.kill_pod("slow")
    node.kill_pod("quick")

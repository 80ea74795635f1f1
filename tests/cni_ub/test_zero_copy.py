"""Zero-copy ways through the executable: what a pod is told, and that nothing of it stays."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cni_ub.node import SimulatedNode
from ubhost.roots import Roots
from ubhost.zerocopy import ZeroCopy, injection

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedNode]:
    running = SimulatedNode.up(tmp_path_factory.mktemp("n"), 2)
    running.start_agent()
    yield running
    running.down()


def sharing(node: SimulatedNode, device: str, number: int, **ways: Any) -> dict[str, Any]:
    address = f'{{"cniVersion": "1.0.0", "ips": [{{"address": "10.77.0.{number}/24"}}]}}'
    node.ipam.order("answer", "ADD", address)
    return node.conf(device, zeroCopy=ways)


def test_two_pods_of_a_host_get_a_segment_to_share_and_leave_nothing(node: SimulatedNode) -> None:
    before = node.state()
    roots = Roots(node.root)
    first, second = node.new_pod("pod-1"), node.new_pod("pod-2")
    ways = {"sockets": "auto", "sharedMemory": "1Mi"}
    assert node.call("ADD", sharing(node, "urma_1", 5, **ways), pod=first).code == 0
    assert node.call("ADD", sharing(node, "urma_2", 6, **ways), pod=second, container="c2").code == 0
    told = ZeroCopy(roots).documents()
    assert len(told) == 2
    assert any("segment" in str(mount) or "shm" in str(mount) for mount in injection(roots, "c1").mounts)
    assert node.call("DEL", node.conf("urma_1", zeroCopy=ways), pod=first).code == 0
    assert node.call("DEL", node.conf("urma_2", zeroCopy=ways), pod=second, container="c2").code == 0
    assert ZeroCopy(roots).attachments() == ()
    assert injection(roots, "c1").mounts == ()
    node.kill_pod("pod-1")
    node.kill_pod("pod-2")
    assert node.state() == before


def test_sockets_that_the_host_does_not_have_are_refused_by_name(node: SimulatedNode) -> None:
    before = node.state()
    pod = node.new_pod("pod-1")
    code, message = node.call("ADD", sharing(node, "urma_1", 5, sockets="ums"), pod=pod).error
    assert (code, "ums" in message.lower()) == (103, True)
    node.kill_pod("pod-1")
    assert node.state() == before


@pytest.mark.parametrize("size", ["1Xi", "-1", "1.5.5Mi", "Mi", "¹Mi"])
def test_a_senseless_size_is_named(node: SimulatedNode, size: str) -> None:
    code, message = node.call("ADD", sharing(node, "urma_1", 5, sharedMemory=size), pod="/run/netns/none").error
    assert (code, "sharedMemory" in message) == (7, True)

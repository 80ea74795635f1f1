"""D. A device that is pulled out from under its pod."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cni_ub.node import SimulatedNode, attach

pytestmark = pytest.mark.kernel


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SimulatedNode]:
    node = SimulatedNode.up(tmp_path / "node", 2)
    yield node
    node.down()


def test_h43_a_device_that_vanished_under_its_pod_is_let_go(node: SimulatedNode, pod: str) -> None:
    attach(node, pod)
    node.happen("unplug", node="node0", device="urma_1")
    code, message = node.call("STATUS", node.conf()).error
    assert (code, "urma_1" in message) == (51, True)
    assert node.call("ADD", node.conf(), pod=pod, container="c2", ifname="net2").error[0] == 100
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    assert (node.ledger, node.ipam.calls) == ([], ["ADD", "DEL"])
    node.happen("plug", node="node0", device="urma_1")
    attach(node, pod)

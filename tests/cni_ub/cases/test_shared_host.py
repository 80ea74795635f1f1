"""C, D. A host that shows its devices to every namespace, as the driver does by default (dev_sharing on)."""

from collections.abc import Iterator

import pytest

from tests.cni_ub.node import SimulatedNode, attach

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedNode]:
    node = SimulatedNode.up(tmp_path_factory.mktemp("node"), 2, "sharing: shared\n")
    yield node
    node.down()


def test_h39_status_and_add_refuse_what_cannot_be_isolated(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    code, message = node.call("STATUS", node.conf()).error
    assert (code, "dev_sharing" in message) == (50, True)
    code, message = node.call("ADD", node.conf(), pod=pod).error
    assert (code, "dev_sharing off" in message) == (103, True)
    assert (node.state(), node.ipam.calls) == (before, [])
    assert node.call("STATUS", node.conf(isolation="shared")).code == 0


def test_pods_that_share_a_device_have_eids_of_their_own(node: SimulatedNode, pod: str) -> None:
    before = node.ledger, node.netdevs()
    second = node.new_pod("pod-2")
    for container, where in (("c1", pod), ("c2", second)):
        attach(node, where, container=container, isolation="shared", netdev="none")
    mine, yours = node.eids_in(pod), node.eids_in(second)
    assert mine
    assert yours
    assert mine.isdisjoint(yours)
    for container, where in (("c1", pod), ("c2", second)):
        assert node.call("DEL", node.conf(isolation="shared"), pod=where, container=container).code == 0
        assert node.eids_in(where) == set()
    assert (node.ledger, node.netdevs()) == before

"""A. DEL releases all that can be released, whatever is missing, and may be called again."""

import pytest

from tests.cni_ub.node import SimulatedNode, attach
from tests.waiting import wait_for

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize("netns", ["", "/run/netns/gone", "/dev/null", "/proc/self/ns/net"])
def test_h1_h2_del_after_the_namespace_is_gone_releases_device_and_addresses(
    node: SimulatedNode, pod: str, netns: str
) -> None:
    before = node.state()
    attach(node, pod)
    node.kill_pod("pod-1")
    deleted = node.call("DEL", node.conf(), pod=netns)
    assert (deleted.code, deleted.stdout) == (0, b"")
    assert node.ipam.calls == ["ADD", "DEL"]
    wait_for(lambda: node.state() == before)


def test_h1_del_without_a_namespace_frees_a_device_whose_pod_still_lives(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    attach(node, pod)
    assert node.call("DEL", node.conf(), pod="").code == 0
    assert node.state() == before
    assert node.names_in(pod) == {"lo"}


def test_h4_del_may_be_repeated(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    attach(node, pod)
    assert [node.call("DEL", node.conf(), pod=pod).code for _ in range(3)] == [0, 0, 0]
    assert node.state() == before


@pytest.mark.parametrize("previous", [{}, None, "torn", [1], {"cniVersion": "7.0"}])
def test_h5_del_does_not_need_prevresult(node: SimulatedNode, pod: str, previous: object) -> None:
    before = node.state()
    attach(node, pod)
    assert node.call("DEL", node.conf(prevResult=previous), pod=pod).code == 0
    assert node.state() == before


def test_h6_del_of_what_was_never_added(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    assert node.ipam.calls == ["DEL"]
    assert node.state() == before


@pytest.mark.parametrize("torn", [b"", b'{"version": 1, "sta', b"\xff\xff", b"null"])
def test_h7_del_with_a_torn_record(node: SimulatedNode, pod: str, torn: bytes) -> None:
    attach(node, pod)
    node.record().write_bytes(torn)
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    assert node.ipam.calls == ["ADD", "DEL"]
    assert (set(node.exposed().values()), node.ledger, node.names_in(pod)) == ({0}, [], {"lo"})


def test_h10_a_failing_ipam_does_not_hold_the_device(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    attach(node, pod)
    node.ipam.order("fail", "DEL", '{"code": 17, "msg": "store is down"}')
    _, message = node.call("DEL", node.conf(), pod=pod).error
    assert "store is down" in message
    assert node.state()[:2] == before[:2]
    node.ipam.obey_no_more()
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    assert node.state() == before


def test_h10_a_missing_ipam_does_not_hold_the_device(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    attach(node, pod)
    _, message = node.call("DEL", node.conf(), pod=pod, CNI_PATH="/nowhere").error
    assert "not found" not in message
    assert node.state()[:2] == before[:2]
    assert node.call("DEL", node.conf(), pod=pod).code == 0


def test_h11_a_failed_reset_leaves_the_record_and_the_rest_is_done(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    attach(node, pod)
    node.fault("unexpose", errno="EIO")
    code, message = node.call("DEL", node.conf(), pod=pod).error
    assert (code, "unexpose" in message) == (5, True)
    assert node.ipam.calls == ["ADD", "DEL"]
    assert node.names_in(pod) == {"lo"}
    assert node.ledger == ["urma_1@c1@net1.json"]
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    assert node.state() == before

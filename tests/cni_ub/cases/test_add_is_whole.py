"""B. ADD does everything or nothing: who refuses half-way, and what stands in its way, leave no trace."""

from typing import Any

import pytest

from tests.cni_ub.machine import ip
from tests.cni_ub.node import SimulatedNode, attach
from tests.waiting import wait_for

pytestmark = pytest.mark.kernel


def test_h13_a_failing_ipam_undoes_the_add(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    node.ipam.order("fail", "ADD", '{"code": 113, "msg": "exhausted", "details": "10.0.0.0/8"}')
    added = node.call("ADD", node.conf(), pod=pod)
    assert added.error[0] == 113
    assert added.document["details"] == "10.0.0.0/8"
    assert node.ipam.calls == ["ADD", "DEL"]
    assert (node.state(), node.names_in(pod)) == (before, {"lo"})
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    node.ipam.obey_no_more()
    attach(node, node.new_pod("pod-2"), container="c2")


@pytest.mark.parametrize(
    "answer",
    [
        '{"cniVersion": "1.0.0", "ips": []}',
        "not json",
        "",
        '{"cniVersion": "9.0.0", "ips": [{"address": "10.0.0.1/8"}]}',
        '{"cniVersion": "1.0.0", "ips": [null]}',
        '{"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.1"}]}',
    ],
)
def test_h14_a_senseless_ipam_result_undoes_the_add(node: SimulatedNode, pod: str, answer: str) -> None:
    before = node.state()
    node.ipam.order("answer", "ADD", answer)
    assert node.call("ADD", node.conf(), pod=pod).error[0] == 6
    assert node.ipam.calls == ["ADD", "DEL"]
    assert (node.state(), node.names_in(pod)) == (before, {"lo"})


@pytest.mark.parametrize(
    "fault",
    [
        {"operation": "expose", "errno": "EPERM"},
        {"operation": "expose", "errno": "EPERM", "skip": 2},
        {"operation": "move_eid", "errno": "EPERM", "skip": 7},
        {"operation": "move_eid", "errno": "EIO", "when": "after"},
        {"operation": "set_bandwidth", "errno": "EIO"},
    ],
)
def test_h15_a_driver_that_refuses_half_way_undoes_the_add(
    node: SimulatedNode, pod: str, fault: dict[str, Any]
) -> None:
    before = node.state()
    node.fault(**fault)
    assert node.call("ADD", node.conf(qos={"maxMbps": 800}), pod=pod).code == 1
    assert (node.state(), node.names_in(pod)) == (before, {"lo"})
    attach(node, pod)


@pytest.mark.parametrize("qos", [{}, {"minMbps": 0, "maxMbps": 0}, {"maxMbps": None}])
def test_h15_what_nobody_asked_to_set_is_not_set(node: SimulatedNode, pod: str, qos: dict[str, int | None]) -> None:
    for operation in ("set_bandwidth", "set_service_level"):
        node.fault(operation, errno="EIO", count=100)
    attach(node, pod, qos=qos)
    assert node.call("DEL", node.conf(qos=qos), pod=pod).code == 0


def test_h17_what_cannot_be_expressed_is_refused_with_nothing_done(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    conf = node.conf(cniVersion="0.2.0", netdev="none")
    del conf["ipam"]
    assert node.call("ADD", conf, pod=pod).error[0] == 7
    assert node.state() == before


def test_h18_a_taken_name_is_refused_with_nothing_done(node: SimulatedNode, pod: str) -> None:
    attach(node, pod)
    during = node.state()
    _, message = node.call("ADD", node.conf("urma_2"), pod=pod, container="c2").error
    assert "net1" in message
    assert node.ipam.calls == ["ADD"]
    assert node.state() == during


def test_h19_a_second_add_is_refused_and_another_interface_works(node: SimulatedNode, pod: str) -> None:
    attach(node, pod)
    during = node.state()
    assert node.call("ADD", node.conf(), pod=pod).code == 1
    assert node.state() == during
    node.ipam.order("answer", "ADD", '{"cniVersion": "1.0.0", "ips": [{"address": "10.78.0.5/24"}]}')
    attach(node, pod, device="urma_2", ifname="net2")
    assert node.names_in(pod) == {"lo", "net1", "net2"}


def test_h20_a_device_named_like_an_interface_of_the_pod(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    ip("-n pod-1 link add ipourma1 type veth peer name eth0")
    attach(node, pod)
    assert node.names_in(pod) == {"lo", "eth0", "ipourma1", "net1"}
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    assert node.state() == before


def test_h21_alternative_names(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    ip("link property add dev ipourma1 altname net1 altname enp7")
    for _ in range(2):
        attach(node, pod)
        ip("-n pod-1 link property add dev net1 altname ipourma1")  # as udev does with an old name
        assert node.call("DEL", node.conf(), pod=pod).code == 0
        altnames = node.netdevs()["ipourma1"][5]
        assert altnames == ("enp7",)
    ip("link property del dev ipourma1 altname enp7")
    assert node.state() == before


def test_h23_a_netdev_that_came_home_late_under_the_pods_name(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    ip("link set ipourma1 down alias ub-cni:ipourma1:")
    ip("link set ipourma1 name net1 up")
    attach(node, pod)
    assert node.names_in(pod) == {"lo", "net1"}
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    wait_for(lambda: node.state() == before)

"""qos.serviceLevel belongs to one attachment: the next pod finds the device as it was."""

import errno
from typing import Any

import pytest

from tests.cni_ub.machine import Machine
from ubsim.faults import When

pytestmark = pytest.mark.kernel

QOS = {"qos": {"serviceLevel": 5, "priority": 3}}
MEMBERS = ("bonding_dev_1", "udma2", "udma3")


def levels(machine: Machine) -> dict[str, Any]:
    return {member: machine.provider.service_levels(member) for member in MEMBERS}


@pytest.fixture
def before(machine: Machine) -> dict[str, Any]:
    machine.provider.set_service_level("udma2", 7, 3)  # the administrator's own
    return levels(machine)


def test_del_puts_back_what_every_member_had(machine: Machine, pod: str, before: dict[str, Any]) -> None:
    assert machine.call("ADD", machine.conf(**QOS), pod=pod).code == 0
    assert [found[3] for found in levels(machine).values()] == [5, 5, 5]
    assert machine.call("DEL", machine.conf(), pod=pod).code == 0
    assert levels(machine) == before
    assert machine.ledger == []


@pytest.mark.parametrize("when", When)
def test_an_add_that_fails_half_way_puts_them_back(
    machine: Machine, pod: str, before: dict[str, Any], when: When
) -> None:
    machine.provider.fail("set_service_level", errno.EIO, when=when, count=1)
    assert machine.call("ADD", machine.conf(**QOS), pod=pod).code == 1
    assert levels(machine) == before
    assert machine.names_in(pod) == {"lo"}


def test_a_del_that_cannot_is_tried_again(machine: Machine, pod: str, before: dict[str, Any]) -> None:
    assert machine.call("ADD", machine.conf(**QOS), pod=pod).code == 0
    machine.provider.fail("set_service_level", errno.EIO, when=When.BEFORE, count=1)
    assert machine.call("DEL", machine.conf(), pod=pod).code == 1
    assert machine.names_in(pod) == {"lo"}  # the link is home all the same
    assert machine.call("DEL", machine.conf(), pod=pod).code == 0
    assert levels(machine) == before


def test_the_next_pod_finds_them_as_they_were_when_the_first_died(
    machine: Machine, pod: str, before: dict[str, Any]
) -> None:
    assert machine.call("ADD", machine.conf(netdev="auto", **QOS), pod=pod).code == 0
    machine.bring_home("pod-1", "net1")
    machine.kill_pod("pod-1")
    assert machine.call("ADD", machine.conf(), pod=machine.new_pod("pod-2"), container="c2").code == 0
    assert levels(machine) == before

"""ADD on an ordinary RDMA server, the driver in memory: what cannot move says so before anything else moves."""

import errno

import pytest

from tests.cni_ub.machine import Machine
from ubhost.provider import Kind, Sharing

pytestmark = pytest.mark.kernel


def test_a_device_that_cannot_move_refuses_before_its_netdev_leaves(machine: Machine, pod: str) -> None:
    machine.provider.kind = Kind.RDMA
    links = machine.state()[0]
    machine.provider.fail("expose", errno.EOPNOTSUPP)
    machine.watch_links()
    assert machine.call("ADD", machine.conf(), pod=pod).code == 1
    assert machine.state()[0] == links
    assert machine.link_notices() == ""  # not even for a moment


def test_a_device_that_many_pods_share_keeps_its_netdev(machine: Machine, pod: str) -> None:
    machine.provider.kind = Kind.RDMA
    machine.provider.set_sharing(Sharing.SHARED)
    code, message = machine.call("ADD", machine.conf(isolation="shared"), pod=pod).error
    assert (code, "netdev" in message) == (7, True)
    assert machine.names_in(pod) == {"lo"}


def test_an_rdma_device_and_its_netdev_move_one_after_the_other(machine: Machine, pod: str) -> None:
    before = machine.state()
    machine.provider.kind = Kind.RDMA
    assert machine.call("ADD", machine.conf(), pod=pod).code == 0
    assert machine.members_in(pod) == ("bonding_dev_1", "udma2", "udma3")
    assert machine.call("DEL", machine.conf(), pod=pod).code == 0
    assert machine.state() == before

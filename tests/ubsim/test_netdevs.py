"""The netdevs of a simulated node are real ones: they move, come home, and carry packets."""

import os
import socket
from pathlib import Path

import pytest

from tests.ubsim.node import NewPod
from tests.waiting import wait_for
from ubhost.kernel.netns import visiting
from ubhost.kernel.rtnl import Rtnl
from ubhost.provider import Provider
from ubhost.providers import choose
from ubsim import named_netns
from ubsim.handles import NodeHandle, SuperNodeHandle

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("no_thread_is_left")]


def test_a_netdev_is_an_ipourma_with_its_eid_for_an_address(provider: Provider) -> None:
    device = provider.devices()[0]
    assert device.netdev is not None
    with Rtnl() as links:
        link = links.link(device.netdev)
        assert link is not None
        assert (link.mtu, link.is_up) == (4094, True)
        assert [str(a.ip) for a in links.addresses(link.index)] == [device.eids[0].eid.ipv6]


def test_a_netdev_that_died_with_a_pod_comes_home(ub_node: NodeHandle, provider: Provider, new_pod: NewPod) -> None:
    device = provider.devices()[0]
    name = device.netdev
    assert name is not None
    pod = new_pod("pod")
    with Rtnl() as links:
        link = links.link(name)
        assert link is not None
        links.move(link.index, pod, "eth0")
        assert links.link(name) is None
        os.close(pod)
        named_netns.remove(Path("/run/netns/pod"))
        wait_for(lambda: links.link(name) is not None)
        wait_for(lambda: bool((back := links.link(name)) and back.is_up and links.addresses(back.index)))


def test_a_netdev_that_was_brought_back_gets_its_address_again(provider: Provider, new_pod: NewPod) -> None:
    name = provider.devices()[0].netdev
    assert name is not None
    pod = new_pod("pod")
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    with Rtnl() as links, Rtnl(pod) as inside:
        there = links.link(name)
        assert there is not None
        links.move(there.index, pod, "eth0")
        moved = inside.link("eth0")
        assert moved is not None
        inside.move(moved.index, here, name)
        wait_for(lambda: bool((back := links.link(name)) and back.is_up and links.addresses(back.index)))
    os.close(here)


TWO_OWN = {"name": "own", "super_node_id": 9, "nodes": [{"name": "node", "count": 2, "devices": 1, "netns": "own"}]}


@pytest.mark.scenario(TWO_OWN)
def test_two_nodes_reach_one_another_over_their_netdevs(supernode: SuperNodeHandle) -> None:
    first, second = supernode["node0"], supernode["node1"]
    target = choose(second.roots, "sim").devices()[0].eids[0].eid.ipv6
    assert first.netns is not None
    descriptor = os.open(first.netns, os.O_RDONLY)
    try:
        with visiting(descriptor):
            connection = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            echo = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    finally:
        os.close(descriptor)
    with connection, echo:
        echo.settimeout(60)
        echo.sendto(bytes([128, 0, 0, 0, 0x55, 0x42, 0, 1]), (target, 0))
        while True:
            reply, sender = echo.recvfrom(2048)
            if reply[0] == 129:
                break
        assert sender[0] == target

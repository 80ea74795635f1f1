"""What is worth telling between two looks at a host."""

from dataclasses import replace
from pathlib import Path

import pytest

from ubhost.changes import Change, What, changes
from ubhost.discovery import Discovery, Level
from ubhost.model import NumaNode, PortState, SharedMemory, UrmaPort
from ubhost.provider import Device, Kind, Sharing
from ubhost.topology import Node, Topology, topology
from ubsim.expansion import load
from ubsim.hosts import hosts_of

URMA_1 = Device("urma_1", ("bonding_dev_1", "udma2", "udma3"))


@pytest.fixture(scope="module")
def before() -> Discovery:
    host = hosts_of(load(Path(__file__).with_name("pair.yaml")))["node0"]
    shown = replace(topology(host), nodes=(Node(0, "node0", 0), Node(1, "node1", 1)))
    return Discovery(Kind.SIM, Level.STAND_IN, host, shown, Sharing.EXCLUSIVE, (URMA_1,))


def with_port(shown: Topology, *, is_up: bool) -> Topology:
    first, *others = shown.dies
    port, *ports = first.ports
    return replace(shown, dies=(replace(first, ports=(replace(port, is_up=is_up), *ports)), *others))


def test_two_looks_that_say_the_same_are_no_change(before: Discovery) -> None:
    assert changes(before, replace(before, notes=("another note",))) == ()


def test_a_port_that_goes_down_names_link_plane_and_devices(before: Discovery) -> None:
    after = replace(before, topology=with_port(before.topology, is_up=False))
    (change,) = changes(before, after)
    assert change == Change(
        What.PORT_DOWN,
        "die 00001 port 0",
        "link to cc08-a000-0-1-000000-0000000700010000; plane 0 has 0 of 9 ports up: it is cut off",
        ("urma_1",),
    )
    assert [change.what for change in changes(after, before)] == [What.PORT_UP]


def test_a_device_that_falls_ill_says_what_is_seen_of_it(before: Discovery) -> None:
    kernel = dict(before.topology.devices)
    kernel["udma2"] = replace(kernel["udma2"], ports=(UrmaPort(0, state=PortState.DOWN),))
    ill = (replace(URMA_1, is_healthy=False),)
    (change,) = changes(before, replace(before, devices=ill, topology=replace(before.topology, devices=kernel)))
    assert (change.what, change.subject) == (What.UNHEALTHY, "urma_1")
    assert "udma2 port 0 DOWN" in change.cause
    del kernel["udma3"]
    (change,) = changes(before, replace(before, devices=ill, topology=replace(before.topology, devices=kernel)))
    assert change.cause == "udma3 not there"
    assert [c.what for c in changes(replace(before, devices=ill), before)] == [What.HEALTHY]


def test_devices_nodes_and_memory_come_and_go(before: Discovery) -> None:
    after = replace(
        before,
        devices=(replace(URMA_1, id="urma_2"),),
        topology=replace(before.topology, nodes=(Node(0, "node0", 0), Node(2, "node2", 1))),
        host=replace(before.host, numa=(*before.host.numa[:2], NumaNode(9, memory_total=1 << 30)),
                     shared_memory=(SharedMemory(7, "import", 128 << 20),)),
        sharing=Sharing.SHARED,
    )  # fmt: skip
    gone = len(before.host.shared_memory)
    found = [(change.what, change.subject) for change in changes(before, after)]
    assert found[:2] == [(What.DEVICE_GONE, "urma_1"), (What.DEVICE_NEW, "urma_2")]
    assert found[2:4] == [(What.NODE_GONE, "node1"), (What.NODE_NEW, "node2")]
    assert found[4:6] == [(What.MEMORY_GONE, "NUMA 2"), (What.MEMORY_NEW, "NUMA 9")]
    assert found[6 + gone :] == [(What.MEMORY_NEW, "obmm_shmdev7"), (What.SHARING, "devices")]


def test_nodes_are_not_gone_when_ubse_is(before: Discovery) -> None:
    assert changes(before, replace(before, topology=replace(before.topology, nodes=()))) == ()

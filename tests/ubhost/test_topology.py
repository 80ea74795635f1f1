"""Dies, planes, links and distances, of the example super-nodes and of hand-made ones."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubhost.model import Position, UbHost
from ubhost.topology import Topology, topology
from ubhost.ubse.bodies import CpuLink, NodeInfo
from ubsim.expansion import load
from ubsim.hosts import hosts_of


@pytest.fixture(scope="module")
def mesh() -> Mapping[str, UbHost]:
    return hosts_of(load(Path(__file__).with_name("mesh.yaml")))


def test_a_node_has_a_die_on_each_plane(mesh: Mapping[str, UbHost]) -> None:
    found = topology(mesh["node3"])
    assert [(die.plane, len(die.ports), len(die.links)) for die in found.dies] == [(0, 9, 7), (1, 9, 7)]
    assert found.dies[0].bandwidth_mbps == 7 * 400_000
    assert len({port.peer for port in found.dies[0].links}) == 7


def test_a_device_reaches_a_plane_with_each_entity(mesh: Mapping[str, UbHost]) -> None:
    found = topology(mesh["node3"])
    assert found.planes_of(("bonding_dev_1", "udma2", "udma3")) == (0, 1)
    assert found.planes_of(("udma3",)) == (1,)
    assert found.planes_of(("bonding_dev_1",)) == ()
    die = found.die_of("udma2")
    assert die is not None
    assert die.controller == "00001"


def test_the_position_is_read_from_the_hosts_own_bonding_eid(mesh: Mapping[str, UbHost]) -> None:
    assert topology(UbHost(True, devices=mesh["node3"].devices)).position == Position(42, 3)
    assert topology(UbHost(True)).position == Position()


def test_numa_distances_are_the_kernels(mesh: Mapping[str, UbHost]) -> None:
    found = topology(mesh["node0"])
    assert found.distance(0, 0) == 10
    assert found.distance(0, 1) == 21
    assert found.distance(0, 99) is None
    assert found.distance(99, 0) is None


def at(slot: int, *pairs: tuple[int, int], count: int = 4) -> Topology:
    nodes = [NodeInfo(number, (0, 1), f"n{number}") for number in range(count)]
    links = [CpuLink(a, 0, b, 0) for a, b in pairs]
    return topology(UbHost(True, position=Position(1, slot)), nodes, links)


def test_hops_are_counted_over_the_links_of_ubse() -> None:
    found = at(0, (0, 1), (1, 0), (1, 2))
    assert [(node.host_name, node.hops) for node in found.nodes] == [("n0", 0), ("n1", 1), ("n2", 2), ("n3", None)]
    assert found.links == {(0, 1), (1, 2)}


def test_without_a_slot_of_our_own_no_way_is_known() -> None:
    assert [node.hops for node in topology(UbHost(True), [NodeInfo(0, (0, 1), "n0")]).nodes] == [None]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5))), st.integers(0, 5))
def test_a_neighbour_is_one_hop_nearer_or_farther_at_most(pairs: list[tuple[int, int]], slot: int) -> None:
    found = at(slot, *pairs, count=6)
    hops = {node.slot_id: node.hops for node in found.nodes}
    assert hops[slot] == 0
    for low, high in found.links:
        near, far = hops[low], hops[high]
        assert (near is None) == (far is None)
        assert near is None or far is None or abs(near - far) <= 1

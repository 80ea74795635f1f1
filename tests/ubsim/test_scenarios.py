"""Scenario files: short to write, strict to read, and refused when they could not exist."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ubhost.errors import InvalidRequest
from ubhost.model import Eid
from ubsim import consistency
from ubsim.expansion import load
from ubsim.scenario import PortId, SuperNode, Wiring
from ubsim.wiring import wire
from ubsim.words import cpus_of, size_of

EXAMPLES = sorted((Path(consistency.__file__).parent / "scenarios").glob("*.yaml"))
TWO: dict[str, Any] = {"name": "two", "super_node_id": 7, "nodes": [{"name": "node0"}, {"name": "node1"}]}


def read(tmp_path: Path, **changes: Any) -> SuperNode:
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump({**TWO, **changes}))
    return load(path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_can_exist(path: Path) -> None:
    assert load(path).nodes


def test_sixty_four_nodes_of_eight_devices_take_a_dozen_lines() -> None:
    path = next(path for path in EXAMPLES if path.stem == "rack-64")
    assert len(path.read_text().splitlines()) <= 12
    assert [len(node.devices) - 1 for node in load(path).nodes] == [8] * 64


def test_a_bonding_eid_is_super_node_slot_and_both_entities(tmp_path: Path) -> None:
    device = read(tmp_path).node("node1").devices[2]
    assert device.bonding_eid == Eid.from_words(7, 1, 4, 5)
    assert device.members == ("udma4", "udma5")
    assert [len(eids) for eids in device.member_eids] == [10, 10]


def test_the_hosts_own_bonding_device_is_the_first_and_not_handed_out(tmp_path: Path) -> None:
    own = read(tmp_path).nodes[0].devices[0]
    assert (own.name, own.bonding) == (None, "bonding_dev_0")


def test_a_full_mesh_joins_every_pair_once_on_each_plane() -> None:
    mesh = load(next(path for path in EXAMPLES if path.stem == "mesh-8"))
    pairs = {(link.a.node, link.b.node, link.a.die) for link in mesh.links}
    assert len(mesh.links) == len(pairs) == 8 * 7 // 2 * 2
    assert all(link.a.die == link.b.die for link in mesh.links)


def test_a_grid_of_sixteen_joins_rows_and_columns(tmp_path: Path) -> None:
    grid = read(tmp_path, wiring="mesh-2d", nodes=[{"count": 16}])
    degree = [sum(node.name in (k.a.node, k.b.node) for k in grid.links) for node in grid.nodes]
    assert degree == [2 * (3 + 3)] * 16


def test_too_many_nodes_for_a_full_mesh_go_behind_switches(tmp_path: Path) -> None:
    assert {k.b.node for k in read(tmp_path, nodes=[{"count": 12}]).links} == {"plane0", "plane1"}
    with pytest.raises(InvalidRequest, match="too few ports"):
        read(tmp_path, nodes=[{"count": 12}], wiring="full-mesh")


@given(st.integers(2, 10))
def test_no_pattern_uses_a_port_twice(count: int) -> None:
    base = load(next(path for path in EXAMPLES if path.stem == "mesh-8"))
    for wiring in Wiring:
        links = wire(wiring, base.nodes[: min(count, 8)])
        ends = [end for link in links for end in (link.a, link.b)]
        assert len(ends) == len(set(ends))


NODE = {"name": "node0"}
IMPOSSIBLE: list[tuple[str, dict[str, Any]]] = [
    ("is not a name", {"name": "Two Nodes"}),
    ("is not a name", {"nodes": [{"name": "../etc"}]}),
    ("called like a switch", {"nodes": [{"name": "plane0"}]}),
    ("two nodes are called node0", {"nodes": [NODE, NODE]}),
    ("host_name", {"nodes": [{**NODE, "host_name": "h" * 64}]}),
    ("are not 1 to 1024", {"nodes": [{"count": 1025, "devices": 0, "ports_per_die": 1}], "wiring": "none"}),
    ("0 nodes are not", {"nodes": []}),
    ("devices are not 0 to 255", {"nodes": [{**NODE, "devices": 256}]}),
    ("even number", {"nodes": [{**NODE, "dies_per_chip": 3}]}),
    ("are more than 9", {"nodes": [{**NODE, "ports_per_die": 10}]}),
    ("super_node_id 0", {"super_node_id": 0}),
    ("taken twice", {"nodes": [{"name": "a", "slot_id": 3}, {"name": "b", "slot_id": 3}]}),
    ("is not 0 to 65535", {"nodes": [{**NODE, "slot_id": 65536}]}),
    ("does not begin with", {"nodes": [{**NODE, "device_overrides": [{"name": "urma_1", "bonding_eid": "::1"}]}]}),
    (
        "is both of",
        {
            "nodes": [
                {
                    **NODE,
                    "device_overrides": [
                        {"name": "urma_1", "bonding_eid": "0:7::9"},
                        {"name": "urma_2", "bonding_eid": "0:7::9"},
                    ],
                }
            ]
        },
    ),
    ("zero, which means none", {"nodes": [{**NODE, "device_overrides": [{"name": "urma_1", "primary_eids": ["::"]}]}]}),
    ("without CPUs", {"nodes": [{**NODE, "die_numa": [0, 5]}]}),
    ("3 entries for 2 dies", {"nodes": [{**NODE, "die_numa": [0, 1, 1]}]}),
    ("no device urma_3", {"nodes": [{**NODE, "device_overrides": [{"name": "urma_3"}]}]}),
    ("no port node0/0/0/9", {"nodes": [{**NODE, "port_overrides": [{"port": "0/0/9"}]}]}),
    ("'UP' is none of", {"nodes": [{**NODE, "port_overrides": [{"port": "0/0/1", "state": "UP"}]}]}),
    ("is not a port", {"links": [{"a": "node0", "b": "node1/0/0/0"}]}),
    ("there is no port node9/0/0/0", {"links": [{"a": "node0/0/0/0", "b": "node9/0/0/0"}]}),
    (
        "port node0/0/0/0 has two links",
        {"links": [{"a": "node0/0/0/0", "b": "node1/0/0/0"}, {"a": "node1/0/0/1", "b": "node0/0/0/0"}]},
    ),
    ("to itself", {"links": [{"a": "node0/0/0/0", "b": "node0/0/0/1"}]}),
    *(
        (f"latency {value}", {"links": [{"a": "node0/0/0/0", "b": "node1/0/0/0", "latency_us": value}]})
        for value in (-1.0, float("nan"), float("inf"))
    ),
    ("are more than the ports'", {"links": [{"a": "node0/0/0/0", "b": "node1/0/0/0", "bandwidth_mbps": 9999999}]}),
    ("has no CPU", {"nodes": [{**NODE, "devices": 0, "numa": [{"memory": "1GiB"}]}]}),
    ("is on two NUMA nodes", {"nodes": [{**NODE, "numa": [{"cpus": "0-3"}, {"cpus": "3"}]}]}),
    ("not a positive number of pages", {"nodes": [{**NODE, "numa": [{"cpus": "0", "memory": "5000"}]}]}),
    ("cannot hold", {"nodes": [{**NODE, "numa": [{"cpus": "0", "memory": "4MiB", "hugepages_2m": 3}]}]}),
    ("is not a size", {"nodes": [{**NODE, "numa": [{"cpus": "0", "memory": "16GB"}]}]}),
    ("is not a list of CPUs", {"nodes": [{**NODE, "numa": [{"cpus": "3-0"}]}]}),
    ("are not 2 rows of 2", {"nodes": [{**NODE, "distances": [[10, 20]]}]}),
    ("is 11, not 10", {"nodes": [{**NODE, "distances": [[10, 20], [20, 11]]}]}),
    ("not the same number", {"nodes": [{**NODE, "distances": [[10, 20], [21, 10]]}]}),
    ("which is no other node", {"nodes": [{**NODE, "numa": [{"cpus": "0"}, {"borrowed_from": "node0"}]}]}),
    ("is borrowed and has CPUs", {"nodes": [NODE, {"name": "b", "numa": [{"cpus": "0", "borrowed_from": "node0"}]}]}),
    (
        "not a multiple of 128 MiB",
        {"nodes": [NODE, {"name": "b", "numa": [{"cpus": "0"}, {"memory": "64MiB", "borrowed_from": "node0"}]}]},
    ),
    (
        "lends",
        {"nodes": [NODE, {"name": "b", "numa": [{"cpus": "0"}, {"memory": "32GiB", "borrowed_from": "node0"}]}]},
    ),
    ("there is no node 'x'", {"shared_memory": [{"name": "r", "owner": "x", "importers": ["node1"]}]}),
    ("has it twice", {"shared_memory": [{"name": "r", "owner": "node0", "importers": ["node0"]}]}),
    ("128 MiB to 256 GiB", {"shared_memory": [{"name": "r", "owner": "node0", "importers": [], "size": "64MiB"}]}),
    ("at most 47", {"shared_memory": [{"name": "r" * 48, "owner": "node0", "importers": []}]}),
    (
        "two regions are called r",
        {"shared_memory": [{"name": "r", "owner": "node0", "importers": []}] * 2},
    ),
    ("unknown key", {"colour": "red"}),
    ("missing", {"nodes": [{}], "shared_memory": [{"name": "r"}]}),
]


@pytest.mark.parametrize(("fault", "changes"), IMPOSSIBLE, ids=[fault for fault, _ in IMPOSSIBLE])
def test_what_cannot_exist_is_refused_by_name(tmp_path: Path, fault: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(tmp_path, **changes)
    assert fault in str(caught.value)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(tmp_path, name="No Name", super_node_id=0, nodes=[{"name": "UPPER"}])
    assert all(part in str(caught.value) for part in ("'No Name'", "super_node_id 0", "'UPPER'"))


@pytest.mark.parametrize(("text", "size"), [("4096", 4096), ("64GiB", 64 << 30), ("2 MiB", 2 << 20)])
def test_sizes(text: str, size: int) -> None:
    assert size_of(text) == size


def test_cpu_lists() -> None:
    assert cpus_of("0-3,8") == (0, 1, 2, 3, 8)
    assert cpus_of("") == ()


def test_ports_are_written_as_node_chip_die_port() -> None:
    assert str(PortId("node0", 0, 1, 3)) == "node0/0/1/3"

"""What people and programs are shown of a host: the example super-node of two."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ubhost.cli import DATA, TEXTS, main
from ubhost.discovery import Discovery, Level
from ubhost.errors import InvalidRequest, Unsupported
from ubhost.model import Eid, PortState, TransMode
from ubhost.provider import Device, EidSlot, Kind, Sharing
from ubhost.show import data, dot, svg
from ubhost.show.table import ranges, rate, size, table
from ubhost.topology import Node, topology
from ubhost.ubse.bodies import CpuLink, NodeInfo
from ubsim.expansion import load
from ubsim.hosts import hosts_of

BONDING = Eid.from_words(7, 0, 2, 3)


@pytest.fixture(scope="module")
def found() -> Discovery:
    host = hosts_of(load(Path(__file__).with_name("pair.yaml")))["node0"]
    nodes = [NodeInfo(0, (0, 1), "node0"), NodeInfo(1, (0, 1), "node1")]
    device = Device(
        "urma_1",
        ("bonding_dev_1", "udma2", "udma3"),
        (EidSlot("bonding_dev_1", 0, BONDING),),
        netdev="ipourma1",
        numa=0,
        is_healthy=False,
    )
    return Discovery(
        Kind.SIM,
        Level.STAND_IN,
        host,
        topology(host, nodes, [CpuLink(0, 0, 1, 0)]),
        Sharing.EXCLUSIVE,
        (device,),
        notes=("UBSE is tired",),
    )


def test_the_overview_says_who_where_and_how_real(found: Discovery) -> None:
    shown = TEXTS["all"](found)
    assert "slot 0 of super-node 7" in shown
    assert "source: provider sim, the simulator: no figure here is a UB figure" in shown
    assert "devices are exclusive between network namespaces" in shown
    assert "note: UBSE is tired" in shown


def test_a_device_is_one_line_with_members_planes_and_health(found: Discovery) -> None:
    header, line = TEXTS["devices"](found).split("\n")
    assert header.split() == ["DEVICE", "HEALTH", "MEMBERS", "NETDEV", "NUMA", "PLANES", "EIDS", "FIRST", "EID"]
    assert line.split() == [
        "urma_1", "bad", "bonding_dev_1", "udma2", "udma3", "ipourma1", "0", "0-1", "1", str(BONDING),
    ]  # fmt: skip


def test_the_topology_names_nodes_links_and_distances(found: Discovery) -> None:
    shown = TEXTS["topology"](found)
    assert "1     node1  1" in shown
    assert "00001  0      0     up    cc08-a000-0-1-000000-0000000700010000  0" in shown
    assert "DISTANCE TO 0 1 2" in shown
    assert "memory only" in shown


@pytest.mark.parametrize("what", sorted(TEXTS))
def test_everything_has_a_text_and_a_document_that_names_its_source(found: Discovery, what: str) -> None:
    assert TEXTS[what](found)
    document = json.loads(json.dumps(DATA[what](found)))
    assert (document["version"], document["provider"], document["level"]) == (1, "sim", "stand-in")
    assert document["notes"] == ["UBSE is tired"]


def test_json_has_eids_in_full_and_enumerations_by_name(found: Discovery) -> None:
    document = DATA["all"](found)
    assert document["devices"][0]["eids"][0] == {"device": "bonding_dev_1", "index": 0, "eid": str(BONDING)}
    assert document["devices"][0]["planes"] == [0, 1]
    assert document["host"]["devices"][0]["ports"][0]["state"] == "ACTIVE"
    assert document["topology"]["dies"][0]["nominal_mbps"] == 400_000


SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_tells_every_port_and_device_by_a_word(found: Discovery) -> None:
    drawn = ElementTree.fromstring(svg.picture(found))
    titles = [title.text for title in drawn.iter(f"{SVG}title")]
    assert titles[0] == "node0, slot 0 of super-node 7"
    assert "port 0 up, to cc08-a000-0-1-000000-0000000700010000 port 0" in titles
    assert titles.count("port 8 down, to nobody") == 2
    assert "urma_1: udma2, not healthy" in titles
    assert "node1, slot 1, 1 hop away" in titles
    words = [text.text or "" for text in drawn.iter(f"{SVG}text")]
    assert "provider sim, from the simulator: no figure here is a UB figure" in words
    assert "memory only" in words


def test_a_hostile_name_cannot_leave_its_text(found: Discovery) -> None:
    nodes = (Node(0, '<script>"x"</script>', 0), Node(1, "a&b", 1))
    hostile = replace(found, topology=replace(found.topology, nodes=nodes))
    drawn = ElementTree.fromstring(svg.picture(hostile))
    assert not list(drawn.iter(f"{SVG}script"))
    assert '\\"x\\"' in dot.graph(hostile)


@pytest.mark.parametrize("count", [0, 1, 2, 65])
def test_any_number_of_nodes_is_drawn(found: Discovery, count: int) -> None:
    nodes = tuple(Node(slot, f"n{slot}", min(slot, 1)) for slot in range(count))
    many = replace(found, topology=replace(found.topology, nodes=nodes, dies=(), numa=()), devices=())
    assert ElementTree.fromstring(svg.picture(many)).tag == f"{SVG}svg"


def test_the_graph_joins_devices_to_their_dies(found: Discovery) -> None:
    drawn = dot.graph(found)
    assert '"urma_1" -- "die 00001" [label="udma2"];' in drawn
    assert '"slot 0" -- "slot 1";' in drawn
    assert drawn.count("{") == drawn.count("}")


def test_only_the_topology_can_be_drawn() -> None:
    with pytest.raises(InvalidRequest, match="--dot and --svg draw the topology"):
        main(["numa", "--svg"])


def test_plain_data_knows_every_kind_of_value() -> None:
    assert data.plain(PortState.DOWN) == "DOWN"
    assert data.plain(TransMode.RM | TransMode.UM) == ["RM", "UM"]
    assert data.plain({1: b"\x0f"}) == {"1": "0f"}
    with pytest.raises(TypeError):
        data.plain(object())


def test_a_host_with_nothing_is_still_shown(found: Discovery) -> None:
    empty = replace(found, host=replace(found.host, devices=(), numa=()), devices=(), sharing=None)
    assert "devices are ? between" in TEXTS["all"](empty)


def test_columns_are_aligned_also_under_wide_characters() -> None:
    assert table(("A", "B"), [("灵衢", 1), (None, "x")]) == "A     B\n灵衢  1\n-     x"


def test_numbers_are_said_as_people_say_them() -> None:
    assert [size(n) for n in (None, 512, 2048, 64 << 30)] == ["-", "512 B", "2.0 KiB", "64.0 GiB"]
    assert [rate(n) for n in (None, 800, 2500, 2_800_000)] == ["-", "800 Mb/s", "2.5 Gb/s", "2.8 Tb/s"]
    assert ranges([3, 1, 2, 8]) == "1-3,8"
    assert ranges([]) == "-"


def test_where_nothing_is_the_command_says_what_it_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UB_ROOT", str(tmp_path))
    with pytest.raises(Unsupported, match="no simulator answers at"):
        main(["devices", "--json"])


def test_a_wrong_word_is_a_usage_error() -> None:
    with pytest.raises(InvalidRequest, match="invalid choice: 'nonsense'"):
        main(["nonsense"])

"""What ubsectl and UBSE say to one another: bytes pinned by hand from UBSE's serialiser."""

import socket
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubhost.errors import NotFound
from ubhost.provider import Bandwidth
from ubhost.ubse import wire
from ubhost.ubse.client import Ubse as UbseClient
from ubhost.ubse.serial import Reader, Writer
from ubhost.ubse.ubsectl import DeviceQuery, LimitRow, NodeLoan
from ubhost.ubse.wire import Malformed, Module, NodeOp, UrmaOp
from ubsim.expansion import expand
from ubsim.handles import NodeHandle, SuperNodeHandle
from ubsim.scenario import NodeEntry, ScenarioFile, SuperNode
from ubsim.ubse import Rejected, Ubse
from ubsim.ubse_cli import activate, cluster, devices, limits, member_eids, node_info, physical_links
from ubsim.ubse_service import handed_out


@pytest.fixture(scope="module")
def world() -> SuperNode:
    return expand(ScenarioFile("w", (NodeEntry("node", count=3, devices=2),), super_node_id=7), where="test")


def state(world: SuperNode) -> Ubse:
    return Ubse({urma.name: urma for urma in handed_out(world, world.nodes[0])})


def test_a_message_is_three_words_and_aligned_items() -> None:
    message = Writer().u32(5).text("urma_1").texts(("a",)).encode()
    assert message == bytes.fromhex(
        "ff000000 03000000 2c000000"  # head: code, alignment - 1, length of the whole
        "0400000b 05000000"  # unsigned int, 4 bytes
        "07000022 75726d61 5f310000"  # std::string with its NUL, 7 bytes, filled up
        "01000041 02000022 61000000"  # a list of one
    )


def test_what_was_written_is_read() -> None:
    kid = Writer().u32(1).text("in")
    reader = Reader(Writer().u32(2**32 - 1).size(2**40).text("").texts(("x", "yy")).nested(kid).encode())
    assert (reader.u32(), reader.size(), reader.text(), reader.texts()) == (2**32 - 1, 2**40, "", ("x", "yy"))
    inner = reader.nested()
    assert (inner.u32(), inner.text(), inner.is_at_end, reader.is_at_end) == (1, "in", True, True)


@given(st.binary(max_size=80))
def test_nonsense_is_malformed_and_nothing_else(data: bytes) -> None:
    framed = b"\xff\0\0\0\x03\0\0\0" + (12 + len(data)).to_bytes(4, "little") + data
    for message in (data, framed):
        try:
            DeviceQuery.decode(message)
        except Malformed:
            continue


def test_devices_are_told_as_ubsectl_reads_them(world: SuperNode) -> None:
    node = world.nodes[0]
    reply = Reader(devices(DeviceQuery(0, ()), node, state(world), member_eids(node)))
    assert reply.u32() == 2
    assert (reply.text(), reply.u32(), reply.text()) == ("urma_1", 0, "0000:0007:0000:0000:0000:0002:0000:0003")
    assert reply.texts() == ("udma2", "udma3")
    assert reply.texts() == ("4245:4944:0007:0000:0000:0002:0000:0000", "4245:4944:0007:0000:0000:0003:0000:0000")
    assert reply.u32() == 0


@pytest.mark.parametrize("body", [Writer().u32(0).u32(1).text("urma_2"), Writer().u32(0).u32(0).u32(1).text("urma_2")])
def test_a_query_by_name_is_understood_with_and_without_the_type_of_older_heads(world: SuperNode, body: Writer) -> None:
    query = DeviceQuery.decode(body.encode())
    assert query == DeviceQuery(0, ("urma_2",))
    reply = Reader(devices(query, world.nodes[0], state(world), member_eids(world.nodes[0])))
    assert (reply.u32(), reply.text()) == (1, "urma_2")


def test_devices_of_another_slot_are_not_told(world: SuperNode) -> None:
    with pytest.raises(Rejected):
        devices(DeviceQuery(2, ()), world.nodes[0], state(world), {})
    with pytest.raises(Rejected):
        limits(Writer().u32(2).encode(), world.nodes[0], state(world))
    with pytest.raises(Rejected):
        activate(Writer().text("2").encode(), world.nodes[0], state(world))


def test_limits_come_in_a_message_inside_the_message(world: SuperNode) -> None:
    ask = Writer().u32(0).encode()
    assert Reader(limits(ask, world.nodes[0], state(world))).u32() == 0
    reply = Reader(limits(ask, world.nodes[0], state(world).limit("urma_2", Bandwidth(8, 16), 0)))
    assert reply.u32() == 1
    inner = reply.nested()
    assert (inner.text(), inner.texts(), inner.u32(), inner.u32()) == ("urma_2", ("udma4", "udma5"), 8, 16)


def test_activate_wakes_every_device_of_the_node(world: SuperNode) -> None:
    asleep = state(world)
    asleep = asleep.changed(replace(asleep.named("urma_1"), is_active=False))
    after, reply = activate(Writer().text("0").encode(), world.nodes[0], asleep)
    assert after.named("urma_1").is_active
    assert Reader(reply).u32() == 0


def test_the_cluster_names_hosts_roles_and_bonding_eids(world: SuperNode) -> None:
    reply = Reader(cluster(world))
    assert reply.size() == 3
    rows = [(reply.text(), reply.text(), reply.text()) for _ in range(3)]
    assert rows[0] == ("node0(0)", "master", "0000:0007:0000:0000:0000:0000:0000:0001")
    assert [row[1] for row in rows] == ["master", "standby", "agent"]


def test_a_node_is_found_by_its_slot_or_is_our_own(world: SuperNode) -> None:
    for body, expected in (
        (b"", (0, "node1(1)", "standby")),
        (Writer().encode(), (0, "node1(1)", "standby")),
        (Writer().text("2").encode(), (0, "node2(2)", "agent")),
    ):
        reply = Reader(node_info(body, world, world.nodes[1]))
        assert (reply.u32(), reply.text(), reply.text()) == expected
    assert Reader(node_info(Writer().text("9").encode(), world, world.nodes[1])).u32() != 0


def test_cables_are_told_once_with_the_lower_slot_first(world: SuperNode) -> None:
    reply = Reader(physical_links(world))
    links = [reply.nested() for _ in range(reply.size())]
    assert len(links) == len(world.links)
    assert [links[0].text() for _ in range(9)] == [
        "node0(0)", "0", "0", "0/0/0", "node1(1)", "0", "0", "0/0/0", "0/0/0-1/0/0",
    ]  # fmt: skip


def test_behind_switches_cables_are_not_told() -> None:
    clos = expand(ScenarioFile("w", (NodeEntry("node", count=40),)), where="test")
    with pytest.raises(Rejected, match="Clos"):
        physical_links(clos)


@pytest.mark.kernel
@pytest.mark.scenario(
    {
        "name": "c",
        "nodes": [{"name": "node", "count": 2, "device_overrides": [{"name": "urma_1", "active": False}]}],
        "shared_memory": [{"name": "s", "owner": "node0", "importers": ["node1"], "size": "128MiB"}],
    }
)
def test_the_client_asks_what_ubsectl_asks(supernode: SuperNodeHandle, ub_node: NodeHandle) -> None:
    ubse = UbseClient(ub_node.roots.ubse_socket)
    assert [(row.name, row.is_active, row.members) for row in ubse.device_rows(0)] == [
        ("urma_1", False, ("udma2", "udma3")), ("urma_2", True, ("udma4", "udma5")),
    ]  # fmt: skip
    ubse.activate(0)
    assert [row.is_active for row in ubse.device_rows(0, "urma_1")] == [True]
    assert ubse.limit_rows(0) == ()
    ubse.set_bandwidth("urma_2", 8, 16)
    assert ubse.limit_rows(0) == (LimitRow("urma_2", ("udma4", "udma5"), 8, 16),)
    assert [(node.node, node.role) for node in ubse.cluster()] == [("node0(0)", "master"), ("node1(1)", "standby")]
    assert ubse.cluster_node(1) == ubse.cluster()[1]
    with pytest.raises(NotFound, match="slot 9"):
        ubse.cluster_node(9)
    assert {link.link for link in ubse.physical_links()} >= {"0/0/0-1/0/0"}
    supernode.happen("borrow", borrower="node0", lender="node1", size="256MiB")
    assert ubse.node_loans() == (NodeLoan("node0(0)", "node1(1)", "256"),)
    shared, borrowed = ubse.loans()
    assert (shared.name, shared.kind, shared.node, shared.status) == ("s", "shm", "node1(1)", "done")
    assert (borrowed.kind, borrowed.lender, borrowed.size) == ("numa", "node1(1)", str(256 << 20))
    assert [row.status for row in ubse.memory_status()] == ["ok", "ok"]


@pytest.mark.kernel
@pytest.mark.scenario(
    {"name": "c", "nodes": [{"name": "node0", "device_overrides": [{"name": "urma_1", "active": False}]}]}
)
def test_the_stand_in_answers_them_over_its_socket(ub_node: NodeHandle) -> None:
    def ask(module: Module, op: int, body: bytes) -> Reader:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(60)
            connection.connect(str(ub_node.roots.ubse_socket))
            connection.sendall(wire.Request(module, op, body).encode())
            status, length = wire.reply_header(connection.recv(8))
            assert status == 0
            return Reader(connection.recv(length, socket.MSG_WAITALL))

    def states() -> list[int]:
        reply = ask(Module.URMA, UrmaOp.CLI_DEV_GET, Writer().u32(0).u32(0).encode())
        found = []
        for _ in range(reply.u32()):
            reply.text(), reply.u32(), reply.text(), reply.texts(), reply.texts()
            found.append(reply.u32())
        return found

    assert states() == [1, 0]
    assert ask(Module.URMA, UrmaOp.ACTIVATE, Writer().text("0").encode()).u32() == 0
    assert states() == [0, 0]
    assert ask(Module.NODE, NodeOp.CLUSTER, Writer().encode()).size() == 1
    assert ask(Module.NODE, NodeOp.CLI_NODE_INFO, b"").u32() == 0

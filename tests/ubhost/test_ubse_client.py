"""The client against a server that is played here on a real unix socket."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.ubhost.ubse_server import Server
from ubhost.errors import Conflict, HostFault, InvalidRequest, NotFound
from ubhost.model import Eid
from ubhost.ubse import bodies, memory, wire
from ubhost.ubse.client import MAX_CONNECTIONS, Absent, Down, Ubse
from ubhost.ubse.generation import Generation
from ubhost.ubse.wire import Malformed, MemOp, Module, NodeOp, UrmaOp


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "ubse.sock")
    yield server
    server.close()


@pytest.fixture
def client(tmp_path: Path) -> Ubse:
    return Ubse(tmp_path / "ubse.sock", timeout_s=60)


def test_devices_are_listed(server: Server, client: Ubse) -> None:
    devices = (bodies.UrmaInfo("urma_1", hw_res_id=5), bodies.UrmaInfo("urma_2", is_healthy=False))
    server.answer(bodies.encode_urma_list(devices))
    assert client.urma_devices() == devices
    assert client.urma_devices(shared=True) == devices
    assert server.heard == [(6, 5, b"\0\0\0\0"), (6, 5, b"\1\0\0\0")]


def test_an_allocation_tells_the_kernel_devices(server: Server, client: Ubse) -> None:
    paths = bodies.UrmaPaths("bonding_dev_1", ("udma2", "udma3"), Eid(7))
    server.answer(paths.encode())
    assert client.allocate("urma_1") == paths
    assert server.heard == [(Module.URMA, UrmaOp.DEV_ALLOC, b"urma_1\0")]


def test_limits_are_set_read_and_reset(server: Server, client: Ubse) -> None:
    server.answer(bodies.encode_limits(8, 80))
    client.set_bandwidth("urma_1", 8, 80)
    assert client.bandwidth("urma_1") == (8, 80)
    client.reset_bandwidth("urma_1")
    client.free("urma_1")
    assert [op for _, op, _ in server.heard] == [UrmaOp.QOS_SET, UrmaOp.QOS_GET, UrmaOp.QOS_RESET, UrmaOp.DEV_FREE]


@pytest.mark.parametrize(("low", "high"), [(4, 8), (8, 12), (16, 8), (-8, 8)])
def test_a_limit_that_ubse_would_bend_is_never_sent(server: Server, client: Ubse, low: int, high: int) -> None:
    with pytest.raises(InvalidRequest, match=f"urma_1: bandwidth {low} to {high}"):
        client.set_bandwidth("urma_1", low, high)
    assert server.heard == []


def test_nodes_links_and_memory_are_listed(server: Server, client: Ubse) -> None:
    node = bodies.NodeInfo(3, (0, 1), "node3")
    link = bodies.CpuLink(3, 0, 4, 1)
    numa = bodies.NumaMemory(3, 0, 0, False, 100, 1 << 40, 1 << 39, 10, 5)
    answers = {
        NodeOp.LIST: bodies.encode_node_list([node]),
        NodeOp.NODE_GET: node.encode(),
        NodeOp.CPU_TOPO: bodies.encode_cpu_links([link]),
        NodeOp.NUMA_MEM: bodies.encode_numa_memory([numa]),
    }
    server.handler = lambda module, op, body: wire.Reply(0, answers[NodeOp(op)]).encode()
    assert client.nodes() == (node,)
    assert client.local_node() == node
    assert client.cpu_links() == (link,)
    assert client.numa_memory(3) == (numa,)


def test_memory_is_borrowed_found_and_returned(server: Server, client: Ubse) -> None:
    borrowed, region = memory.FdMemory("m", (1, 2), 256 << 20, 128 << 20), memory.NumaRegion("n", 4)
    answers = {
        MemOp.FD_CREATE: borrowed.encode(),
        MemOp.FD_WITH_LEND: borrowed.encode(),
        MemOp.FD_GET: borrowed.encode(),
        MemOp.FD_LIST: memory.encode_list([borrowed]),
        MemOp.FD_DELETE: b"",
        MemOp.NUMA_CREATE: region.encode(),
        MemOp.NUMA_WITH_LEND: region.encode(),
        MemOp.NUMA_GET: region.encode(),
        MemOp.NUMA_LIST: memory.encode_list([region]),
        MemOp.NUMA_DELETE: b"",
    }
    server.handler = lambda module, op, body: wire.Reply(0, answers[MemOp(op)]).encode()
    lender = memory.Lender(1, 0, 0, 256 << 20)
    assert client.create_fd(memory.FdCreate("m", 256 << 20)) == borrowed
    assert client.create_fd(memory.FdWithLender("m", lender)) == borrowed
    assert client.fd("m") == borrowed
    assert client.fds() == (borrowed,)
    client.delete_fd("m")
    assert client.create_numa(memory.NumaCreate("n", 128 << 20)) == region
    assert client.create_numa(memory.NumaWithLender("n", lender)) == region
    assert client.numa("n") == region
    assert client.numas() == (region,)
    client.delete_numa("n")
    assert [op for _, op, _ in server.heard] == list(answers)


def test_a_status_becomes_a_reason_that_names_operation_and_object(server: Server, client: Ubse) -> None:
    server.answer(status=1007)
    with pytest.raises(NotFound, match="DEV_FREE of urma_9: UBSE status 1007"):
        client.free("urma_9")
    server.answer(status=1006)
    with pytest.raises(Conflict, match="FD_CREATE of m"):
        client.create_fd(memory.FdCreate("m", 128 << 20))


def test_no_more_than_two_connections_at_once(server: Server, client: Ubse) -> None:
    def slow(*_: object) -> bytes:
        time.sleep(0.05)
        return wire.Reply(0, bodies.encode_urma_list([])).encode()

    server.handler = slow
    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(lambda _: client.urma_devices(), range(8)))) == 8
    assert server.most_at_once == MAX_CONNECTIONS == 2


@pytest.mark.parametrize(
    ("answers", "generation"),
    [
        ({2: wire.Reply(0, bodies.encode_node_list([]))}, Generation.KNOWN),
        ({2: wire.Reply(0, b"\x01"), 3: wire.Reply(0, b"\x01\0\0\0")}, Generation.NEWER),
        ({2: wire.Reply(41), 3: wire.Reply(53)}, Generation.UNKNOWN),
    ],
)
def test_the_generation_of_a_ubse_is_found_out_by_asking_for_its_nodes(
    server: Server, client: Ubse, answers: dict[int, wire.Reply], generation: Generation
) -> None:
    server.handler = lambda module, op, body: answers[module].encode()
    assert client.generation() is generation


def test_a_host_without_ubse_is_told_from_one_whose_ubse_is_down(tmp_path: Path) -> None:
    client = Ubse(tmp_path / "run/ubse/ubse.sock")
    with pytest.raises(Absent, match="there is no UBSE on this host"):
        client.urma_devices()
    (tmp_path / "etc/ubse").mkdir(parents=True)
    with pytest.raises(Down, match=r"nobody listens at .*/run/ubse/ubse\.sock"):
        client.urma_devices()


def test_a_stale_socket_means_that_it_is_down(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
        stale.bind(str(tmp_path / "stale.sock"))
    with pytest.raises(Down, match="not running"):
        Ubse(tmp_path / "stale.sock").urma_devices()


@pytest.mark.parametrize("sent", [b"", b"\0\0\0", wire.REPLY.pack(0, 8) + b"half"])
def test_an_answer_that_breaks_off_is_a_fault(server: Server, client: Ubse, sent: bytes) -> None:
    server.handler = lambda *_: sent
    with pytest.raises(HostFault, match="hung up after"):
        client.bandwidth("urma_1")


def test_an_answer_over_the_limit_is_not_even_read(server: Server, client: Ubse) -> None:
    server.handler = lambda *_: wire.REPLY.pack(0, 2**32 - 1)
    with pytest.raises(Malformed, match="4294967295"):
        client.bandwidth("urma_1")


def test_a_silent_server_is_given_up(server: Server, tmp_path: Path) -> None:
    release = threading.Event()

    def silent(*_: object) -> bytes:
        release.wait(5)
        return b""

    server.handler = silent
    try:
        with pytest.raises(HostFault, match="timed out"):
            Ubse(tmp_path / "ubse.sock", timeout_s=0.1).urma_devices()
    finally:
        release.set()


def test_a_server_that_drips_is_given_up_too(server: Server, tmp_path: Path) -> None:
    """The bound is on the call: bytes that keep coming must not extend it."""
    done = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection:
            connection.recv(64)
            connection.sendall(wire.REPLY.pack(0, 1000))
            while not done.wait(0.02):
                try:
                    connection.send(b"\0")
                except OSError:
                    return

    path = tmp_path / "drip.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=lambda: drip(listener.accept()[0]))
        thread.start()
        started = time.monotonic()
        try:
            with pytest.raises(HostFault):
                Ubse(path, timeout_s=0.2).urma_devices()
            assert time.monotonic() - started < 10  # every byte would come in after 20
        finally:
            done.set()
            thread.join(timeout=60)

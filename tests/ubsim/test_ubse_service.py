"""A simulated node speaks UBSE's own protocol, and refuses what UBSE refuses."""

import socket
import stat

import pytest

from tests.ubsim.node import succeeds
from tests.waiting import wait_for
from ubhost.errors import HostFault, NotFound, UbError, Unsupported
from ubhost.provider import Bandwidth, Provider
from ubhost.ubse.client import Ubse
from ubhost.ubse.wire import MAX_BODY, REQUEST, Module, Request
from ubsim.handles import NodeHandle

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("no_thread_is_left")]


def test_ubse_hands_out_each_device_once(ubse: Ubse) -> None:
    assert [device.name for device in ubse.urma_devices()] == ["urma_1", "urma_2"]
    paths = ubse.allocate("urma_1")
    assert (paths.bonding, paths.entities) == ("bonding_dev_1", ("udma2", "udma3"))
    with pytest.raises(UbError, match="1006"):
        ubse.allocate("urma_1")
    ubse.free("urma_1")
    with pytest.raises(NotFound):
        ubse.free("urma_1")
    with pytest.raises(NotFound):
        ubse.allocate("urma_77")


@pytest.mark.scenario({"name": "s", "ubse_owners": False, "nodes": [{"name": "node0"}]})
def test_a_ubse_without_owners_never_says_that_a_device_is_held(ubse: Ubse) -> None:
    assert ubse.allocate("urma_1") == ubse.allocate("urma_1")
    ubse.free("urma_1")
    ubse.free("urma_1")


def test_ubse_limits_bandwidth_of_exclusive_devices_only(provider: Provider, ubse: Ubse) -> None:
    ubse.set_bandwidth("urma_1", 800, 1600)
    assert ubse.bandwidth("urma_1") == (800, 1600)
    ubse.reset_bandwidth("urma_1")
    with pytest.raises(NotFound):
        ubse.bandwidth("urma_1")
    assert provider.bandwidth("urma_1") == Bandwidth()


@pytest.mark.scenario(
    {"name": "s", "nodes": [{"name": "node0", "device_overrides": [{"name": "urma_1", "sharing": "shared"}]}]}
)
def test_ubse_lists_shared_devices_apart_and_limits_none(ubse: Ubse) -> None:
    assert [device.name for device in ubse.urma_devices()] == ["urma_2"]
    assert [device.name for device in ubse.urma_devices(shared=True)] == ["urma_1"]
    with pytest.raises(Unsupported):
        ubse.set_bandwidth("urma_1", 800, 1600)


def test_ubse_knows_the_super_node(ubse: Ubse) -> None:
    assert [node.host_name for node in ubse.nodes()] == ["node0"]
    assert ubse.local_node().slot_id == 0
    assert sum(numa.total for numa in ubse.numa_memory(0)) == 32 << 30
    with pytest.raises(NotFound):
        ubse.numa_memory(5)


def test_ubse_grants_a_user_eight_connections(ub_node: NodeHandle, ubse: Ubse) -> None:
    held = []
    try:
        for _ in range(8):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(str(ub_node.roots.ubse_socket))
            held.append(connection)
        wait_for(lambda: not succeeds(ubse.nodes))
        with pytest.raises(HostFault):
            ubse.nodes()
    finally:
        for connection in held:
            connection.close()
    wait_for(lambda: succeeds(ubse.nodes))


def test_ubse_is_for_its_group_only(ub_node: NodeHandle) -> None:
    assert stat.S_IMODE(ub_node.roots.ubse_socket.stat().st_mode) == 0o660


@pytest.mark.parametrize("body", [b"", b"no end of the name", b"\xff\xfe\0", b"urma_1\0\0\0"])
def test_ubse_answers_nonsense_with_a_status_and_lives_on(ub_node: NodeHandle, ubse: Ubse, body: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(60)
        connection.connect(str(ub_node.roots.ubse_socket))
        connection.sendall(Request(Module.URMA, 1, body).encode())
        assert int.from_bytes(connection.recv(8)[:4], "little") != 0
    assert ubse.nodes()


def test_ubse_hangs_up_on_a_request_over_the_limit(ub_node: NodeHandle, ubse: Ubse) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(60)
        connection.connect(str(ub_node.roots.ubse_socket))
        connection.sendall(REQUEST.pack(Module.URMA, 5, MAX_BODY + 1))
        assert connection.recv(8) == b""
    assert ubse.nodes()

"""A simulated node speaks the driver's and UBSE's own protocols, and refuses what they refuse."""

import errno
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from ubhost.errors import Conflict, HostFault, InvalidRequest, NotFound, UbError, Unsupported
from ubhost.kernel.netns import inode, visiting
from ubhost.kernel.rtnl import Rtnl
from ubhost.netlink import NLMSG_ERROR, Frame, frames
from ubhost.provider import Bandwidth, Provider
from ubhost.providers import choose
from ubhost.ubcore.client import Refused, Ubcore
from ubhost.ubcore.message import Attribute, Command, Message
from ubhost.ubcore.transport import SIMULATED_FAMILY, SimulatorChannel
from ubhost.ubse.client import Ubse
from ubhost.ubse.wire import MAX_BODY, REQUEST, Module, Request
from ubhost.uevents import Uevents
from ubsim import named_netns, record
from ubsim.contexts import context
from ubsim.handles import NodeHandle, SuperNodeHandle

pytestmark = pytest.mark.kernel
NewPod = Callable[[str], int]
SHARED = {"name": "shared", "sharing": "shared", "nodes": [{"name": "node0"}]}


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


@pytest.fixture
def ubcore(ub_node: NodeHandle) -> Ubcore:
    return Ubcore(lambda: SimulatorChannel(ub_node.roots.simulator / "kernel.sock"))


@pytest.fixture
def ubse(ub_node: NodeHandle) -> Ubse:
    return Ubse(ub_node.roots.ubse_socket)


@pytest.fixture
def provider(ub_node: NodeHandle) -> Provider:
    return choose(ub_node.roots, "sim")


def ask(node: NodeHandle, request: bytes, *descriptors: int) -> list[Frame]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(60)
        connection.connect(str(node.roots.simulator / "kernel.sock"))
        socket.send_fds(connection, [request], descriptors)
        return list(frames(connection.recv(65536)))


# The driver


def test_an_acknowledgement_is_what_the_kernel_sends(ub_node: NodeHandle, new_pod: NewPod) -> None:
    pod = new_pod("pod")
    what: dict[Attribute, int | str | bytes] = {Attribute.DEV_NAME: "udma2", Attribute.NS_FD: 4711}
    request = Message(Command.EXPOSE_DEV_NS, what, SIMULATED_FAMILY, sequence=77, port=5)
    (reply,) = ask(ub_node, request.encode(), pod)
    assert (reply.kind, reply.sequence, reply.port, reply.status) == (NLMSG_ERROR, 77, 5, 0)


@pytest.mark.parametrize(
    ("command", "what", "code"),
    [
        (Command.EXPOSE_DEV_NS, {Attribute.DEV_NAME: "udma99", Attribute.NS_FD: 3}, errno.ENODEV),
        (Command.UNEXPOSE_DEV_NS, {Attribute.DEV_NAME: "udma99", Attribute.NS_FD: 3}, errno.ENODEV),
        (Command.SET_DEV_NS, {Attribute.DEV_NAME: "udma99", Attribute.NS_FD: 3}, errno.EINVAL),
        (
            Command.SET_DEV_EID_NS,
            {Attribute.DEV_NAME: "udma99", Attribute.EID_IDX: 0, Attribute.NS_FD: 3},
            errno.EPERM,
        ),
        (Command.SET_DEV_EID_NS, {Attribute.DEV_NAME: "udma2", Attribute.EID_IDX: 0, Attribute.NS_FD: 3}, errno.EPERM),
        (Command.EXPOSE_DEV_NS, {Attribute.DEV_NAME: "udma2"}, errno.EINVAL),
        (Command.SET_DEV_NS_MODE, {}, errno.EINVAL),
        (Command.SET_SL, {Attribute.DEV_NAME: "udma2", Attribute.SL: 1, Attribute.PRIORITY: 16}, errno.EINVAL),
        (Command.GET_TOPO_INFO, {}, errno.EOPNOTSUPP),
        (Command.ADD_EID, {Attribute.HDR_ARGS_LEN: 72, Attribute.HDR_ARGS_ADDR: 8}, errno.EOPNOTSUPP),  # not as a dump
        (Command.SET_EID_MODE, {Attribute.HDR_ARGS_LEN: 65}, errno.EINVAL),
        (Command.SET_EID_MODE, {Attribute.HDR_ARGS_LEN: 65, Attribute.HDR_ARGS_ADDR: 8}, errno.EFAULT),
    ],
)
def test_the_driver_refuses_with_its_own_errno(
    ub_node: NodeHandle, new_pod: NewPod, command: Command, what: dict[Attribute, int | str | bytes], code: int
) -> None:
    (reply,) = ask(ub_node, Message(command, what, SIMULATED_FAMILY).encode(), new_pod("pod"))
    assert reply.status == code


def test_a_request_without_its_descriptor_or_with_a_wrong_one_is_refused(ub_node: NodeHandle, tmp_path: Path) -> None:
    what: dict[Attribute, int | str | bytes] = {Attribute.DEV_NAME: "udma2", Attribute.NS_FD: 3}
    request = Message(Command.EXPOSE_DEV_NS, what, SIMULATED_FAMILY).encode()
    assert ask(ub_node, request)[0].status == errno.EBADF
    with (tmp_path / "file").open("w") as file:
        assert ask(ub_node, request, file.fileno())[0].status == errno.EINVAL


@pytest.mark.parametrize("garbage", [b"\0" * 16, b"\xff" * 16, b"\x14\0\0\0" + b"\x20\0\5\0" + b"\0" * 12])
def test_garbage_is_answered_with_einval_or_eopnotsupp_and_the_node_lives_on(
    ub_node: NodeHandle, ubcore: Ubcore, garbage: bytes
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(60)
        connection.connect(str(ub_node.roots.simulator / "kernel.sock"))
        connection.send(garbage)
        assert int.from_bytes(connection.recv(65536)[16:20], "little", signed=True) in (
            -errno.EINVAL,
            -errno.EOPNOTSUPP,
        )
    assert ubcore.show_system().dev_sharing is False


def test_the_mode_cannot_change_while_any_namespace_lives_even_one_the_driver_was_never_told_of(
    ubcore: Ubcore, new_pod: NewPod
) -> None:
    pod = new_pod("pod")
    with pytest.raises(Refused) as caught:
        ubcore.set_dev_sharing(True)
    assert caught.value.code == errno.EPERM
    os.close(pod)
    named_netns.remove(Path("/run/netns/pod"))
    wait_for(lambda: _succeeds(lambda: ubcore.set_dev_sharing(True)))
    assert ubcore.show_system().dev_sharing is True


def _succeeds(call: Callable[[], object]) -> bool:
    try:
        call()
    except UbError:
        return False
    return True


def test_an_eid_is_deleted_and_asked_for_again_through_the_memory_of_the_caller(
    ub_node: NodeHandle, ubcore: Ubcore, provider: Provider
) -> None:
    slots = provider.device("urma_1").eids
    lost = next(slot for slot in slots if slot.device == "udma2" and slot.index == 3)
    ubcore.delete_eid("udma2", 3)
    assert provider.device("urma_1").eids == tuple(slot for slot in slots if slot != lost)
    ubcore.add_eid("udma2", 3)
    assert provider.device("urma_1").eids == slots
    for change, device, index, code in (
        (ubcore.add_eid, "udma2", 900, errno.EINVAL),
        (ubcore.add_eid, "udma99", 0, errno.EPERM),
        (ubcore.delete_eid, "udma2", 900, errno.EINVAL),
    ):
        with pytest.raises(Refused) as caught:
            change(device, index)
        assert caught.value.code == code


def test_an_eid_goes_to_the_namespace_whose_descriptor_lies_in_the_callers_memory(
    ubcore: Ubcore, provider: Provider, new_pod: NewPod
) -> None:
    pod = new_pod("pod")
    ubcore.move_device("udma2", pod)
    ubcore.delete_eid("udma2", 3)
    ubcore.add_eid("udma2", 3, pod)
    assert 3 in [slot.index for slot in provider.visible(pod)]
    with pytest.raises(Refused) as caught:
        ubcore.add_eid("udma2", 3, 999)
    assert caught.value.code == errno.EBADF


def test_a_change_of_who_assigns_eids_drops_them_all(ubcore: Ubcore, provider: Provider, ub_node: NodeHandle) -> None:
    ubcore.set_eid_mode("udma2", dynamic=True)
    assert not [slot for slot in provider.device("urma_1").eids if slot.device == "udma2"]
    assert (ub_node.roots.sys / "class/ubcore/udma2/dynamic_eid").read_text() == "1\n"
    with pytest.raises(Refused) as caught:
        ubcore.add_eid("udma2", 0)
    assert caught.value.code == errno.EPERM


def test_only_root_may_talk_to_the_driver(ub_node: NodeHandle) -> None:
    run = ub_node.roots.simulator
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    assert {stat.S_IMODE((run / name).stat().st_mode) for name in ("kernel.sock", "control.sock")} == {0o600}


@pytest.mark.parametrize("given", [("device", "eid"), ("device",), ()])
def test_a_context_is_for_whom_the_device_and_the_eid_were_given_to(
    ub_node: NodeHandle, ubcore: Ubcore, new_pod: NewPod, given: tuple[str, ...]
) -> None:
    pod = new_pod("pod")
    if "device" in given:
        ubcore.expose("udma2", pod)
    if "eid" in given:
        ubcore.move_eid("udma2", 0, pod)
    is_pods = "eid" in given
    with _refused_unless(is_pods), visiting(pod), context(ub_node.root, "udma2", 0):
        pass
    with _refused_unless(not is_pods), context(ub_node.root, "udma2", 0):  # in the host's own namespace
        pass


def _refused_unless(accessible: bool) -> AbstractContextManager[object]:
    return nullcontext() if accessible else pytest.raises(PermissionError, match="not accessible by current ns")


@pytest.mark.parametrize(("device", "index", "code"), [("udma99", 0, errno.ENODEV), ("udma2", 1024, errno.EINVAL)])
def test_a_context_of_nothing_is_refused(ub_node: NodeHandle, device: str, index: int, code: int) -> None:
    with pytest.raises(OSError, match=device) as caught, context(ub_node.root, device, index):
        pass
    assert caught.value.errno == code


def test_a_physical_device_that_moves_is_told_as_gone_and_come(
    ub_node: NodeHandle, ubcore: Ubcore, new_pod: NewPod
) -> None:
    with Uevents(ub_node.roots) as uevents:
        uevents.read()
        ubcore.move_device("udma2", new_pod("pod"))
        told: list[tuple[str, str]] = []

        def heard_both() -> bool:
            told.extend((event.action, event.path) for event in uevents.read().events)
            return len(told) >= 2

        wait_for(heard_both)
    assert told == [("remove", "/devices/virtual/ubcore/udma2"), ("add", "/devices/virtual/ubcore/udma2")]


# Views


def test_a_device_and_its_eids_are_seen_where_they_were_given_and_nowhere_else(
    provider: Provider, new_pod: NewPod
) -> None:
    pod, other = new_pod("pod"), new_pod("other")
    device = provider.devices()[0]
    assert len(device.eids) == 21
    for member in device.members:
        provider.expose(member, pod)
    for slot in device.eids:
        provider.move_eid(slot, pod)
    assert set(provider.exposed(pod)) == set(device.members)
    assert {slot.eid for slot in provider.visible(pod)} == {slot.eid for slot in device.eids}
    assert provider.exposed(other) == ()
    assert provider.visible(other) == ()
    assert provider.devices()[0].eids == ()
    for member in device.members:
        provider.unexpose(member, pod)
    assert provider.devices()[0].eids == device.eids
    assert provider.exposed(pod) == ()


def test_an_eid_before_its_device_is_a_conflict(provider: Provider, new_pod: NewPod) -> None:
    with pytest.raises(Conflict):
        provider.move_eid(provider.devices()[0].eids[0], new_pod("pod"))


def test_when_a_pods_namespace_dies_its_device_is_whole_again(provider: Provider, new_pod: NewPod) -> None:
    pod = new_pod("pod")
    device = provider.devices()[0]
    for member in device.members:
        provider.expose(member, pod)
    for slot in device.eids:
        provider.move_eid(slot, pod)
    os.close(pod)
    named_netns.remove(Path("/run/netns/pod"))
    wait_for(lambda: provider.devices()[0].eids == device.eids)


def test_the_simulator_does_not_keep_a_namespace_alive(ub_node: NodeHandle, ubcore: Ubcore, new_pod: NewPod) -> None:
    pod = new_pod("pod")
    number = inode(pod)
    ubcore.expose("udma2", pod)
    view = ub_node.roots.simulator / "netns" / str(number)
    assert view.is_dir()
    os.close(pod)
    named_netns.remove(Path("/run/netns/pod"))
    wait_for(lambda: not view.exists())


@pytest.mark.scenario(SHARED)
def test_in_shared_mode_every_namespace_sees_every_device(provider: Provider, ubcore: Ubcore, new_pod: NewPod) -> None:
    pod = new_pod("pod")
    assert "udma2" in provider.exposed(pod)
    assert provider.visible(pod) == ()
    with pytest.raises(Refused) as caught:
        ubcore.move_device("udma2", pod)
    assert caught.value.code == errno.EPERM


@pytest.mark.scenario(SHARED)
def test_in_shared_mode_a_dying_namespace_takes_its_eids_with_it(
    ub_node: NodeHandle, ubcore: Ubcore, new_pod: NewPod
) -> None:
    pod = new_pod("pod")
    slot0 = ub_node.root / "sys/class/ubcore/udma2/eids/eid0"
    before = slot0.read_text()
    ubcore.move_eid("udma2", 0, pod)
    os.close(pod)
    named_netns.remove(Path("/run/netns/pod"))
    wait_for(lambda: any(event["operation"] == "netns_exit" for event in ub_node.log()))
    assert slot0.read_text() == "0000:0000:0000:0000:0000:0000:0000:0000\n" != before


def test_a_physical_device_that_moved_is_gone_from_the_host(
    ub_node: NodeHandle, ubcore: Ubcore, new_pod: NewPod
) -> None:
    pod = new_pod("pod")
    ubcore.move_device("udma2", pod)
    assert not (ub_node.root / "sys/class/ubcore/udma2").exists()
    view = ub_node.roots.simulator / "netns" / str(inode(pod)) / "class/ubcore/udma2"
    assert (view / "eids/eid0").read_text().startswith("4245:4944:")
    assert (view / "port0/state").read_text() == "4\n"


def test_a_service_level_is_written_where_the_driver_shows_it(ub_node: NodeHandle, ubcore: Ubcore) -> None:
    ubcore.set_service_level("udma2", service_level=3, priority=7)
    assert (ub_node.root / "sys/class/ubcore/udma2/priority/priority7/sl").read_text() == "3\n"


# Netdevs


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


# UBSE


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
        wait_for(lambda: not _succeeds(ubse.nodes))
        with pytest.raises(HostFault):
            ubse.nodes()
    finally:
        for connection in held:
            connection.close()
    wait_for(lambda: _succeeds(ubse.nodes))


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


# Orders


def test_a_fault_on_order_hits_the_call_it_was_meant_for(
    ub_node: NodeHandle, ubcore: Ubcore, ubse: Ubse, new_pod: NewPod
) -> None:
    pod = new_pod("pod")
    ub_node.fail("expose", "EBUSY", device="udma3")
    ub_node.fail("allocate", "EIO")
    ubcore.expose("udma2", pod)
    with pytest.raises(Refused) as caught:
        ubcore.expose("udma3", pod)
    assert caught.value.code == errno.EBUSY
    ubcore.expose("udma3", pod)
    with pytest.raises(HostFault):
        ubse.allocate("urma_1")
    outcomes = [(e["operation"], e["device"], e["outcome"]) for e in ub_node.log() if e["operation"] != "order"]
    assert outcomes == [
        ("expose", "udma2", "ok"),
        ("expose", "udma3", "EBUSY"),
        ("expose", "udma3", "ok"),
        ("allocate", "urma_1", "ENGINE_INTERNAL"),
    ]


def test_a_slow_operation_holds_up_nobody_else(ub_node: NodeHandle, ubcore: Ubcore, new_pod: NewPod) -> None:
    pod = new_pod("pod")
    ub_node.delay("expose", 4.0)
    slow = threading.Thread(target=lambda: ubcore.expose("udma2", pod))
    slow.start()
    wait_for(lambda: not ub_node.status()["faults"])  # it waits now
    ubcore.show_system()
    assert slow.is_alive()
    slow.join()
    assert [event["operation"] for event in ub_node.log()[-2:]] == ["show_system", "expose"]


@pytest.mark.parametrize(
    "order",
    [
        {"operation": "explode", "errno": "EPERM"},
        {"operation": "expose", "errno": "EWHAT"},
        {"operation": "expose"},
        {"operation": "expose", "errno": "EPERM", "count": 0},
        {"operation": "expose", "errno": "EPERM", "colour": "red"},
        {"operation": "expose", "errno": "EPERM", "when": "never"},
    ],
)
def test_a_wrong_order_is_refused(ub_node: NodeHandle, order: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        ub_node.order("fail", **order)


def test_a_dead_daemon_is_no_simulated_host(ub_node: NodeHandle) -> None:
    os.kill(_daemon(ub_node), 9)
    wait_for(lambda: not _succeeds(lambda: choose(ub_node.roots, "sim")))
    with pytest.raises(Unsupported, match="no simulator answers"):
        choose(ub_node.roots, "sim")


def _daemon(node: NodeHandle) -> int:
    running = record.read(node.root.parent)
    assert running is not None
    return running.processes[0].pid


@pytest.fixture(autouse=True)
def no_thread_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    assert threading.active_count() == 1

"""A simulated node speaks the driver's own protocol, and refuses what it refuses."""

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from tests.ubsim.node import NewPod, succeeds
from tests.waiting import wait_for
from ubhost.netlink import NLMSG_ERROR, Frame, frames
from ubhost.ubcore.client import Refused, Ubcore
from ubhost.ubcore.message import Attribute, Command, Message
from ubhost.ubcore.transport import SIMULATED_FAMILY
from ubhost.uevents import Uevents
from ubsim import named_netns
from ubsim.handles import NodeHandle

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("no_thread_is_left")]


def ask(node: NodeHandle, request: bytes, *descriptors: int) -> list[Frame]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(60)
        connection.connect(str(node.roots.simulator / "kernel.sock"))
        socket.send_fds(connection, [request], descriptors)
        return list(frames(connection.recv(65536)))


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
    wait_for(lambda: succeeds(lambda: ubcore.set_dev_sharing(True)))
    assert ubcore.show_system().dev_sharing is True


def test_only_root_may_talk_to_the_driver(ub_node: NodeHandle) -> None:
    run = ub_node.roots.simulator
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    assert {stat.S_IMODE((run / name).stat().st_mode) for name in ("kernel.sock", "control.sock")} == {0o600}


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

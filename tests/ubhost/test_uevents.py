"""Hot-plug notices: parsed, from this kernel, and from a simulator that comes and goes."""

import contextlib
import select
import socket
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubhost.roots import Roots
from ubhost.uevents import KERNEL_GROUP, NETLINK_KOBJECT_UEVENT, Batch, Uevent, Uevents, parse

ADDED = b"add@/devices/ub/udma2\0ACTION=add\0DEVPATH=/devices/ub/udma2\0SUBSYSTEM=ubcore\0SEQNUM=7\0"


def test_a_notice_says_what_happened_to_which_device() -> None:
    event = parse(ADDED)
    assert event is not None
    assert (event.action, event.path, event.subsystem) == ("add", "/devices/ub/udma2", "ubcore")
    assert event.name == "udma2"
    assert event.properties["SEQNUM"] == "7"


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"libudev\0\xfe\xed\xca\xfe",
        b"add@/devices/x\0ACTION=remove\0DEVPATH=/devices/x\0",
        b"add@/devices/x\0ACTION=add\0DEVPATH=/devices/y\0",
        b"add@/devices/\x1b[2J\0ACTION=add\0DEVPATH=/devices/\x1b[2J\0SUBSYSTEM=net\0",
    ],
)
def test_what_is_no_notice_of_the_kernels_is_none(datagram: bytes) -> None:
    assert parse(datagram) is None


@given(st.binary(max_size=100))
def test_any_datagram_is_parsed_or_none(datagram: bytes) -> None:
    assert parse(datagram) is None or b"@" in datagram


def news(uevents: Uevents, timeout_s: float = 60) -> Batch:
    assert select.select([uevents], [], [], timeout_s)[0], "no uevent came"
    return uevents.read()


@pytest.mark.kernel
def test_the_kernel_tells_of_a_new_netdev_and_nothing_is_read_twice(tmp_path: Path) -> None:
    with Uevents(Roots(tmp_path)) as uevents:
        assert uevents.read() == Batch()
        subprocess.run(["ip", "link", "add", "ub-hot", "type", "veth", "peer", "name", "ub-plug"], check=True)
        seen: list[Uevent] = []
        while {"ub-hot", "ub-plug"} - {event.name for event in seen if event.subsystem == "net"}:
            seen += news(uevents).events
        assert {event.action for event in seen} == {"add"}
        subprocess.run(["ip", "link", "del", "ub-hot"], check=True)
        gone = news(uevents).events
        assert ("remove", "net") in {(event.action, event.subsystem) for event in gone}


@pytest.mark.kernel
def test_only_wanted_subsystems_are_told(tmp_path: Path) -> None:
    with Uevents(Roots(tmp_path), frozenset({"ubcore"})) as uevents:
        subprocess.run(["ip", "link", "add", "ub-hot", "type", "veth", "peer", "name", "ub-plug"], check=True)
        assert news(uevents) == Batch()


@pytest.mark.kernel
def test_a_notice_that_another_process_forged_is_dropped(tmp_path: Path) -> None:
    with (
        Uevents(Roots(tmp_path)) as uevents,
        contextlib.closing(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_KOBJECT_UEVENT)) as forger,
    ):
        forger.bind((0, 0))
        forger.sendto(ADDED, (0, KERNEL_GROUP))
        assert select.select([uevents], [], [], 2)[0]
        assert uevents.read() == Batch()


def serve(folder: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (folder / "uevents.sock").unlink(missing_ok=True)
    listener.bind(str(folder / "uevents.sock"))
    listener.listen()
    return listener


def test_a_simulator_that_comes_back_is_heard_again(tmp_path: Path) -> None:
    roots = Roots(tmp_path)
    roots.simulator.mkdir(parents=True)
    with Uevents(roots) as uevents:
        assert uevents.read() == Batch()  # nobody there yet
        assert not select.select([uevents], [], [], 0)[0]
        with contextlib.closing(serve(roots.simulator)):
            assert uevents.read() == Batch(lost=True)  # found: what happened before is not known
            assert uevents.read() == Batch()
    with contextlib.closing(serve(roots.simulator)) as listener, Uevents(roots) as uevents:
        with listener.accept()[0] as connection:
            connection.send(ADDED)
            connection.send(ADDED.replace(b"ubcore", b"block"))
            assert [event.name for event in news(uevents).events] == ["udma2"]
        assert news(uevents) == Batch(lost=True)  # it hung up; we are connected anew
        with listener.accept()[0] as connection:
            connection.send(ADDED)
            assert [event.name for event in news(uevents).events] == ["udma2"]

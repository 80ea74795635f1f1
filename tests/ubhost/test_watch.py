"""Looking again: at notices, at the back-stop, and through looks that fail."""

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ubhost.changes import What
from ubhost.discovery import Discovery, Level
from ubhost.errors import HostFault
from ubhost.model import UbHost
from ubhost.provider import Device, Kind
from ubhost.roots import Roots
from ubhost.topology import Topology
from ubhost.uevents import Uevents
from ubhost.watch import wait, watch

EMPTY = Discovery(Kind.SIM, Level.STAND_IN, UbHost(True), Topology())
FULL = replace(EMPTY, devices=(Device("urma_1", ()),))
NOTICE = b"add@/devices/x\0ACTION=add\0DEVPATH=/devices/x\0SUBSYSTEM=ubcore\0"


@pytest.fixture
def simulator(tmp_path: Path) -> Iterator[tuple[Uevents, socket.socket]]:
    """Notices, and the end that sends them."""
    roots = Roots(tmp_path)
    roots.simulator.mkdir(parents=True)
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as listener:
        listener.bind(str(roots.simulator / "uevents.sock"))
        listener.listen()
        with Uevents(roots) as uevents, listener.accept()[0] as connection:
            yield uevents, connection


def test_a_change_is_told_at_its_notice_and_not_at_the_back_stop(simulator: tuple[Uevents, socket.socket]) -> None:
    uevents, connection = simulator
    looks = iter([EMPTY, FULL])
    told = watch(lambda: next(looks), uevents)
    assert next(told) == (EMPTY, ())
    connection.send(NOTICE)
    started = time.monotonic()
    found, seen = next(told)
    assert time.monotonic() - started < 9  # milliseconds on an idle machine; the back-stop takes 10
    assert found == FULL
    assert [change.what for change in seen] == [What.DEVICE_NEW]


def test_looks_that_show_nothing_new_are_not_told(simulator: tuple[Uevents, socket.socket]) -> None:
    uevents, connection = simulator
    looks = iter([EMPTY, EMPTY, FULL])

    def look() -> Discovery:
        connection.send(NOTICE)
        return next(looks)

    told = watch(look, uevents)
    assert [next(told)[0], next(told)[0]] == [EMPTY, FULL]


def test_a_burst_is_one_look(simulator: tuple[Uevents, socket.socket]) -> None:
    uevents, connection = simulator
    for _ in range(20):
        connection.send(NOTICE)
    assert wait(uevents, 1)
    assert not wait(uevents, 0.05)


def test_a_notice_of_something_else_is_no_news(simulator: tuple[Uevents, socket.socket]) -> None:
    uevents, connection = simulator
    connection.send(NOTICE.replace(b"ubcore", b"block"))
    assert not wait(uevents, 1)


def test_a_look_that_fails_is_tried_again(simulator: tuple[Uevents, socket.socket]) -> None:
    uevents, connection = simulator
    looks: Iterator[Discovery | HostFault] = iter([EMPTY, HostFault("half there"), FULL])

    def look() -> Discovery:
        result = next(looks)
        if isinstance(result, HostFault):
            connection.send(NOTICE)
            raise result
        return result

    told = watch(look, uevents)
    next(told)
    connection.send(NOTICE)
    assert next(told)[0] == FULL


def test_without_a_first_look_there_is_nothing_to_watch(simulator: tuple[Uevents, socket.socket]) -> None:
    def look() -> Discovery:
        raise HostFault("no host")

    with pytest.raises(HostFault, match="no host"):
        next(watch(look, simulator[0]))

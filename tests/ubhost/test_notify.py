"""The service manager hears when a daemon is ready, well and stopping, and costs nothing where there is none."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ubhost.notify import Manager


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A socket as systemd listens on it, and what it puts into NOTIFY_SOCKET."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@ub-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name.replace("@", "\0", 1) if request.param == "abstract" else name)
        receiver.settimeout(30)
        yield receiver, name


def test_a_daemon_says_when_it_is_ready_and_when_it_stops(systemd: tuple[socket.socket, str]) -> None:
    receiver, name = systemd
    with Manager.from_environ({"NOTIFY_SOCKET": name}).serving("4 devices"):
        assert receiver.recv(4096) == b"READY=1\nSTATUS=4 devices"
    assert receiver.recv(4096) == b"STOPPING=1"


def test_the_watchdog_hears_of_a_daemon_as_long_as_it_is_well(systemd: tuple[socket.socket, str]) -> None:
    receiver, name = systemd
    asked = iter([True, True, False, True])
    environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000", "WATCHDOG_PID": str(os.getpid())}
    with Manager.from_environ(environ).serving(is_well=lambda: next(asked, False)):
        assert [receiver.recv(4096) for _ in range(4)] == [b"READY=1\nSTATUS=", *[b"WATCHDOG=1"] * 3]
    assert receiver.recv(4096) == b"STOPPING=1"
    assert list(asked) == []


def test_programs_that_a_daemon_starts_do_not_inherit_its_manager() -> None:
    environ = {"NOTIFY_SOCKET": "/run/systemd/notify", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1", "HOME": "/"}
    manager = Manager.from_environ(environ)
    assert environ == {"HOME": "/"}
    assert manager == Manager("/run/systemd/notify", 0.0)  # the watchdog is of another process


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_without_a_manager_nothing_is_told(environ: dict[str, str]) -> None:
    with Manager.from_environ(environ).serving():
        pass


def test_a_manager_that_went_away_does_not_end_the_daemon(tmp_path: Path) -> None:
    with Manager(str(tmp_path / "gone")).serving():
        pass

"""The shim and the agent's socket, over a real connection."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_ub import wire
from cni_ub.agent.server import Server
from tests.cni_ub.machine import REPOSITORY, Machine
from tests.waiting import wait_for
from ubhost.kernel import netns
from ubhost.roots import Roots

pytestmark = pytest.mark.kernel

WITH_IPAM = {"ipam": {"type": "obedient"}}


def new_server(machine: Machine, workers: int = 2) -> Server:
    return Server(Roots(machine.root).agent_socket, machine.host, workers, lambda verb, succeeded, seconds: None)


@pytest.fixture
def server(machine: Machine) -> Iterator[Server]:
    running = new_server(machine)
    running.start()
    yield running
    running.stop()


def connect(machine: Machine) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(60)
    connection.connect(str(Roots(machine.root).agent_socket))
    return connection


def greeting_for_stranger(path: Path) -> bytes:
    """Return what the agent says to a process that is not root."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.chdir(path.parent)  # the folders above it are closed
        os.setgid(65534)
        os.setuid(65534)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path.name)
            os.write(writer, connection.recv(99))
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as said:  # noqa: PTH123 - a descriptor
        greeting = said.read()
    assert os.waitpid(child, 0)[1] == 0
    return greeting


def test_through_the_agent_the_answers_are_those_of_the_engine_byte_for_byte(machine: Machine, pod: str) -> None:
    mac = machine.link_mac(1)
    without = [
        machine.call("ADD", machine.conf(**WITH_IPAM), pod=pod),
        machine.call("ADD", machine.conf(), pod=pod, container="c2"),
        machine.call("DEL", machine.conf(**WITH_IPAM), pod=pod),
        machine.call("STATUS", machine.conf()),
        machine.call("CHECK", machine.conf(), pod=pod),
    ]
    assert machine.link_mac(1) == mac
    running = new_server(machine)
    running.start()
    through = [
        machine.run_shim("ADD", machine.conf(**WITH_IPAM), pod),
        machine.run_shim("ADD", machine.conf(), pod, "c2"),
        machine.run_shim("DEL", machine.conf(**WITH_IPAM), pod),
        machine.run_shim("STATUS", machine.conf(), ""),
        machine.run_shim("CHECK", machine.conf(), pod),
    ]
    running.stop()
    since = re.compile(rb"since [^\"]*")  # the one thing that time changes
    assert [(a.code, since.sub(b"", a.stdout)) for a in through] == [
        (a.code, since.sub(b"", a.stdout)) for a in without
    ]


def test_without_an_agent_the_shim_does_the_work_itself(machine: Machine, pod: str) -> None:
    code, message = machine.run_shim("ADD", machine.conf(), pod).error
    assert code == 100  # this machine has no driver that another process could use
    assert "no UB host here" in message
    assert machine.run_shim("DEL", machine.conf(**WITH_IPAM), pod).code == 0
    assert machine.ipam.calls == ["DEL"]


@pytest.mark.usefixtures("server")
def test_only_root_may_come_in(machine: Machine) -> None:
    path = Roots(machine.root).agent_socket
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    path.parent.chmod(0o777)  # let everybody in as far as file modes go
    path.chmod(0o666)
    assert greeting_for_stranger(path) == b""
    with connect(machine) as us:
        assert us.recv(99) == wire.greeting(netns.own_inode())


@pytest.mark.usefixtures("server")
def test_a_caller_that_says_nothing_does_not_hold_up_others(machine: Machine, pod: str) -> None:
    with connect(machine) as silent:
        assert silent.recv(99)
        assert machine.run_shim("ADD", machine.conf(), pod).code == 0


def test_when_all_workers_are_busy_the_shim_does_the_work_itself(machine: Machine) -> None:
    running = new_server(machine, workers=1)
    running.start()
    with connect(machine) as silent:
        assert silent.recv(99)
        assert machine.run_shim("STATUS", machine.conf(), "").error[0] == 50  # with no driver of its own
    running.stop()


@pytest.mark.parametrize("junk", [b"", b"x", b"\0" * 12, b"\xff" * 4000], ids=["nothing", "short", "empty", "long"])
@pytest.mark.usefixtures("server")
def test_nonsense_is_dropped_and_the_next_call_works(machine: Machine, junk: bytes) -> None:
    with connect(machine) as caller:
        caller.recv(99)
        caller.sendall(junk)
        caller.shutdown(socket.SHUT_WR)
        assert wire.parse_answer(caller.recv(9999))[0] == 1 if junk == b"\0" * 12 else caller.recv(99) == b""
    assert machine.run_shim("STATUS", machine.conf(), "").code == 0


@pytest.mark.usefixtures("server")
def test_an_add_whose_caller_is_gone_is_undone(machine: Machine, pod: str) -> None:
    before = machine.state()
    machine.ipam.order("sleep", "ADD", "0.3")
    shim = machine.start_shim(machine.environ("ADD", pod), machine.conf(**WITH_IPAM))
    wait_for(lambda: machine.ipam.calls == ["ADD"])
    shim.kill()
    shim.communicate()
    wait_for(lambda: machine.ipam.calls == ["ADD", "DEL"])
    wait_for(lambda: machine.state() == before)
    assert machine.names_in(pod) == {"lo"}


def test_an_agent_that_is_told_to_stop_finishes_what_it_began(machine: Machine, pod: str) -> None:
    running = new_server(machine)
    running.start()
    machine.ipam.order("sleep", "ADD", "0.3")
    shim = machine.start_shim(machine.environ("ADD", pod), machine.conf(**WITH_IPAM))
    wait_for(lambda: machine.ipam.calls == ["ADD"])
    running.stop()
    stdout, _ = shim.communicate(timeout=120)
    assert (shim.returncode, b"net1" in stdout) == (0, True)
    assert not Roots(machine.root).agent_socket.exists()


def test_a_socket_that_a_killed_agent_left_is_taken_over(machine: Machine) -> None:
    path = Roots(machine.root).agent_socket
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    running = new_server(machine)
    running.start()
    assert machine.run_shim("STATUS", machine.conf(), "").code == 0
    running.stop()


def test_an_agent_in_another_network_namespace_is_not_asked(machine: Machine, pod: str) -> None:
    """Its host is not our host. A server in this process visits the pod's namespace to look like one."""
    with open(pod, "rb") as there, netns.visiting(there.fileno()):  # noqa: PTH123
        elsewhere = netns.own_inode()
    path = Roots(machine.root).agent_socket
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(path))
        stranger.listen()
        shim = machine.start_shim(machine.environ("STATUS", ""), machine.conf())
        connection, _ = stranger.accept()
        with connection:
            connection.sendall(wire.greeting(elsewhere))
            assert connection.recv(9999) == b""
        stdout, _ = shim.communicate(timeout=120)
    assert b'"code": 50' in stdout


def test_the_shim_imports_hardly_anything() -> None:
    script = "import sys; before = set(sys.modules); import cni_ub.shim; print(*sorted(set(sys.modules) - before))"
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    found = subprocess.run([sys.executable, "-c", script], env=environ, check=True, capture_output=True, text=True)
    assert found.stdout.split() == ["_json", "_struct", "cni_ub", "cni_ub.shim", "cni_ub.spec", "cni_ub.wire", "struct"]

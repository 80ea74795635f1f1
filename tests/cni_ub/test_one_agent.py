"""Two agents on one host: the second one goes before it touches anything of the first one's."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cni_ub.node import AGENT, SimulatedNode
from ubhost.roots import Roots

pytestmark = pytest.mark.kernel


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SimulatedNode]:
    node = SimulatedNode.up(tmp_path / "node", 1)
    yield node
    node.down()


def sockets(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_ino for path in root.rglob("*") if path.is_socket()}


@pytest.mark.parametrize("is_reachable", [True, False], ids=["while the first one answers", "while it does not yet"])
def test_a_second_agent_goes_before_it_takes_any_socket(node: SimulatedNode, is_reachable: bool) -> None:
    node.start_agent()
    if not is_reachable:
        Roots(node.root).agent_socket.unlink()
    before = sockets(node.root)
    second = subprocess.run(AGENT, env=node.agent_environ, capture_output=True, timeout=120, check=False)
    assert second.returncode == 1
    assert b"another ub-agent is at work on this host" in second.stderr
    assert sockets(node.root) == before
    assert node.agent
    assert node.agent.poll() is None


def test_an_agent_that_was_killed_stands_in_nobodys_way(node: SimulatedNode) -> None:
    node.start_agent()
    node.stop_agent(signal.SIGKILL)
    Roots(node.root).agent_socket.unlink()
    node.start_agent()
    assert node.call("STATUS", node.conf(None)).code == 0

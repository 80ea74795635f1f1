"""A state directory that is full: an ADD is refused before anything changes, and no DEL needs room."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cni_ub.node import SimulatedNode
from tests.waiting import wait_for
from ubhost.roots import Roots

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedNode]:
    node = SimulatedNode.up(tmp_path_factory.mktemp("node"), 2)
    disk = Roots(node.root).state
    disk.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "disk", disk], check=True)
    node.start_agent()
    yield node
    node.stop_agent()
    subprocess.run(["umount", disk], check=True)
    node.down()


def fill(folder: Path) -> Path:
    """Leave not one byte on the file system of ``folder``; return the file that takes them."""
    filler = folder / "filler"
    filled = subprocess.run(["dd", "if=/dev/zero", f"of={filler}"], capture_output=True, check=False)
    assert b"No space left on device" in filled.stderr
    return filler


def test_a_full_state_directory_refuses_an_add_and_holds_up_no_del(node: SimulatedNode) -> None:
    disk = Roots(node.root).state
    first, second = node.new_pod("pod-1"), node.new_pod("pod-2")
    free = node.state()
    assert node.call("ADD", node.conf("urma_1"), pod=first, container="c1").code == 0
    held, calls = node.state(), node.ipam.calls
    filler = fill(disk)

    code, message = node.call("ADD", node.conf("urma_2"), pod=second, container="c2").error
    assert (code, "No space left on device" in message) == (5, True)
    assert (node.state(), node.ipam.calls) == (held, calls)  # nothing was begun
    assert len(list((disk / "attachments").iterdir())) == 1  # and nothing half-written is left
    assert node.call("DEL", node.conf("urma_2"), pod=second, container="c2").code == 0
    assert node.call("DEL", node.conf("urma_1"), pod=first, container="c1").code == 0
    wait_for(lambda: node.state() == free)

    filler.unlink()
    assert node.call("ADD", node.conf("urma_2"), pod=second, container="c2").code == 0
    assert node.call("DEL", node.conf("urma_2"), pod=second, container="c2").code == 0

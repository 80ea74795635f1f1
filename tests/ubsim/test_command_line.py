"""``ubnode sim``: the same orders from the command line."""

import re
import tempfile
from pathlib import Path

import pytest

from tests.ubsim.node import NewPod
from ubhost.errors import UbError
from ubhost.ubcore.client import Ubcore
from ubhost.ubcore.transport import SimulatorChannel
from ubnode.__main__ import main as ubnode
from ubsim.handles import NodeHandle, SuperNodeHandle

pytestmark = pytest.mark.kernel
TWO = {"name": "two", "super_node_id": 7, "nodes": [{"name": "node", "count": 2}]}


def test_the_command_line_gives_the_same_orders(
    supernode: SuperNodeHandle, ub_node: NodeHandle, new_pod: NewPod, capsys: pytest.CaptureFixture[str]
) -> None:
    root = ["--root", str(supernode.folder)]
    driver = Ubcore(lambda: SimulatorChannel(ub_node.roots.simulator / "kernel.sock"))
    fail = ["sim", "fail", "--op", "expose", "--device", "urma_1", "--errno", "EPERM", "--count", "1", *root]
    assert ubnode(fail) == 0
    pod = new_pod("pod")
    with pytest.raises(UbError, match="EPERM"):
        driver.expose("udma2", pod)
    driver.expose("udma2", pod)
    assert ubnode(["sim", "log", "--json", *root]) == 0
    assert '"operation": "expose", "device": "udma2"' in capsys.readouterr().out
    assert ubnode(["sim", "delay", "--op", "expose", "--seconds", "9", *root]) == 0
    assert ubnode(["sim", "clear", *root]) == 0
    for command in (
        ["plug", "node0", "urma_3"],
        ["health", "node0", "urma_3", "bad"],
        ["eid", "node0", "udma4", "0", "lose"],
        ["eid", "node0", "udma4", "0", "restore"],
        ["port", "node0/0/0/0", "DOWN"],
        ["port", "node0/0/0/0", "ACTIVE"],
        ["ubse", "node0", "stop"],
        ["ubse", "node0", "start"],
        ["unplug", "node0", "urma_3"],
    ):
        assert ubnode(["sim", *command, *root]) == 0, command
    assert ubnode(["sim", "status", *root]) == 0
    assert re.search(r"node0 +up +exclusive +2 +2 +0 +1 +0\n", capsys.readouterr().out)
    assert ubnode(["sim", "fail", "--op", "expose", "--errno", "EWHAT", *root]) == 2
    assert "not an errno" in capsys.readouterr().err


@pytest.mark.scenario(TWO)
def test_the_command_line_asks_which_node_is_meant(
    supernode: SuperNodeHandle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("UB_ROOT", raising=False)
    assert ubnode(["sim", "log", "--root", str(supernode.folder)]) == 2
    assert "--node: node0, node1" in capsys.readouterr().err
    monkeypatch.setenv("UB_ROOT", str(supernode["node1"].root))
    assert ubnode(["sim", "log", "--root", str(supernode.folder)]) == 0


def test_a_generated_scenario_comes_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ubnode(["sim", "generate", "--nodes", "3", "--devices", "1"]) == 0
    path = tmp_path / "three.yaml"
    path.write_text(capsys.readouterr().out)
    with tempfile.TemporaryDirectory(prefix="ubsim-") as short:  # that of pytest is too long for sockets
        root = f"{short}/sim"
        try:
            assert ubnode(["sim", "up", "--scenario", str(path), "--root", root]) == 0
            assert ubnode(["sim", "status", "--root", root]) == 0
        finally:
            assert ubnode(["sim", "down", "--root", root]) == 0

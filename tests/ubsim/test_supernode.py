"""A super-node comes up whole or not at all, and goes without a trace."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from tests.ubsim.traces import traces
from ubhost.errors import Conflict, HostFault, InvalidRequest, UbError
from ubnode.__main__ import main as ubnode
from ubsim import consistency, record, supernode
from ubsim.cables import Cables

pytestmark = pytest.mark.kernel
TWO = Path(consistency.__file__).parent / "scenarios" / "two-nodes.yaml"
OWN = {"name": "own", "nodes": [{"name": "node", "count": 2, "netns": "own"}]}


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ubsim-") as short:
        folder = Path(short) / "sim"
        yield folder
        supernode.down(folder)


def scenario(tmp_path: Path, content: Mapping[str, object]) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize("content", [None, OWN], ids=["host", "own"])
def test_down_leaves_nothing_behind_twice_in_a_row(
    folder: Path, tmp_path: Path, content: dict[str, object] | None
) -> None:
    path = TWO if content is None else scenario(tmp_path, content)
    before = traces(folder)
    for _ in range(2):
        supernode.up(path, folder)
        during = traces(folder)
        assert during != before
        assert len(during.processes) == 2
        supernode.down(folder)
        assert traces(folder) == before
    assert not folder.exists()


def test_up_of_what_is_up_changes_nothing(folder: Path) -> None:
    first = supernode.up(TWO, folder)
    assert supernode.up(TWO, folder) == first


def test_down_of_nothing_is_no_error(folder: Path) -> None:
    assert supernode.down(folder) is None


def test_another_super_node_on_the_same_root_is_refused(folder: Path, tmp_path: Path) -> None:
    supernode.up(TWO, folder)
    with pytest.raises(Conflict, match=r"two-nodes is up in .*take it down first"):
        supernode.up(scenario(tmp_path, OWN), folder)


def test_two_super_nodes_live_side_by_side_on_roots_of_their_own(folder: Path) -> None:
    first = supernode.up(TWO, folder)
    second = supernode.up(TWO, folder.parent / "other")
    try:
        assert first.bridge != second.bridge
        assert not {n.name for n in first.netdevs} & {n.name for n in second.netdevs}
    finally:
        supernode.down(folder.parent / "other")
    assert supernode.required(folder) == first


def test_a_folder_that_holds_something_else_is_refused_and_kept(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    with pytest.raises(Conflict, match="not empty"):
        supernode.up(TWO, folder)
    assert (folder / "thesis.tex").read_text() == "mine"
    (folder / "thesis.tex").unlink()


def test_a_name_that_is_taken_on_the_machine_is_not_used(folder: Path) -> None:
    with Cables() as cables:
        cables.add_bridge("ubsim0")
        cables.add_veth("ipourma0", "ubp7", 1500)
        try:
            running = supernode.up(TWO, folder)
            assert running.bridge == "ubsim1"
            assert not {"ipourma0", "ubp7"} & {n for d in running.netdevs for n in (d.name, d.peer)}
            supernode.down(folder)
            assert cables.link("ipourma0") is not None
        finally:
            cables.delete(cables.require("ubsim0").index)
            cables.delete(cables.require("ipourma0").index)


def dying(_: Path, __: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["/bin/false"], stdout=subprocess.PIPE)


def test_an_up_whose_last_daemon_cannot_start_says_so_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    def start(where: Path, nodes: tuple[str, ...]) -> "subprocess.Popen[bytes]":
        return (dying if "node1" in nodes else supernode.spawn_daemon)(where, nodes)

    before = traces(folder)
    with pytest.raises(HostFault, match="did not start"):
        supernode.up(scenario(tmp_path, OWN), folder, start)
    assert traces(folder) == before


@pytest.mark.parametrize("after_s", [0.05, 0.15, 0.25, 0.35])
def test_an_up_that_was_killed_is_cleared_away_by_the_next(folder: Path, after_s: float) -> None:
    before = traces(folder)
    command = [sys.executable, "-m", "ubnode", "sim", "up", "--scenario", str(TWO), "--root", str(folder)]
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stdout=subprocess.DEVNULL
    )
    time.sleep(after_s)
    process.kill()
    process.wait()
    supernode.up(TWO, folder)
    supernode.down(folder)
    deadline = time.monotonic() + 60  # a daemon that was just being born ends by itself when it misses its parent
    while traces(folder) != before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert traces(folder) == before


def test_a_dead_daemon_is_told_by_status_and_mended_by_the_next_up(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = supernode.up(TWO, folder)
    os.kill(running.processes[0].pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while running.processes[0].is_alive and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ubnode(["sim", "status", "--root", str(folder)]) == 1
    assert "no simulated node listens" in capsys.readouterr().out
    supernode.up(TWO, folder)
    assert ubnode(["sim", "status", "--root", str(folder)]) == 0


def test_mounts_inside_a_node_do_not_keep_it_up(folder: Path) -> None:
    running = supernode.up(TWO, folder)
    inside = record.root_of(folder, running.nodes[0]) / "var/lib/kubelet/volume"
    inside.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(inside)], check=True)
    supernode.down(folder)
    assert not folder.exists()


def test_the_command_line_tells_how_to_go_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ubnode(["sim", "up", "--scenario", str(TWO), "--root", str(folder)]) == 0
    told = capsys.readouterr().out
    assert "super-node two-nodes is up: 2 simulated nodes" in told
    assert f"UB_ROOT={folder}/node0" in told
    assert ubnode(["sim", "status", "--root", str(folder), "--json"]) == 0
    assert '"level": "stand-in"' in capsys.readouterr().out
    assert ubnode(["sim", "down", "--root", str(folder)]) == 0
    assert "super-node two-nodes is down" in capsys.readouterr().out


def test_a_root_too_deep_for_sockets_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    with pytest.raises(InvalidRequest, match="bytes too long"):
        supernode.up(TWO, deep)
    assert not deep.exists()


def test_a_scenario_that_cannot_exist_makes_nothing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        supernode.up(scenario(tmp_path, {"name": "x", "nodes": []}), folder)
    assert not folder.exists()


def test_whoever_is_not_root_is_told_so(folder: Path) -> None:
    code = f"""
import os
from pathlib import Path
from ubsim import supernode
os.setresuid(65534, 65534, 65534)
supernode.up(Path({str(TWO)!r}), Path({str(folder)!r}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "needs root" in done.stderr or "Permission denied" in done.stderr


def test_status_of_nothing_says_how_to_begin(folder: Path) -> None:
    with pytest.raises(UbError, match="ubnode sim up"):
        supernode.required(folder)

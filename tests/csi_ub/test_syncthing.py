"""Eventual volumes: copies on every node that become alike, within a bound that is measured."""

import json
import mmap
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from csi_ub.syncthing.daemon import Daemon
from tests.csi_ub import netns
from tests.csi_ub.driver import ROX, RWO, RWX, Driver, StartDriver, refused, ubnode
from ubhost.kernel import mounts

Code = grpc.StatusCode
EVENTUAL = {"consistency": "eventual", "maxStaleness": "5s"}


pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not shutil.which("syncthing"), reason="syncthing is not installed"),
]


def test_device_ids_are_those_of_syncthing(tmp_path: Path) -> None:
    command = ["syncthing", "generate", "--home", str(tmp_path), "--no-default-folder"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env={"HOME": str(tmp_path)})
    assert f"{Daemon(tmp_path, tmp_path, None).device}\n" in said.stdout + said.stderr


@pytest.fixture
def nodes(start: StartDriver) -> Iterator[list[Driver]]:
    names = ["node0", "node1"]
    with netns.network(names, "10.77.8") as addresses:
        peers = [{"node": name, "address": address} for name, address in addresses.items()]
        drivers = [start(name, config={"peers": peers}, within=tuple(netns.inside(name))) for name in names]
        yield drivers
        for driver in drivers:
            driver.stop()
            pid = driver.root / "run/ub-node/syncthing/pid"
            if pid.exists():
                os.kill(int(pid.read_text()), signal.SIGKILL)


def wait(until: Callable[[], bool], timeout_s: float = 60) -> float:
    started = time.monotonic()
    while not until():
        assert time.monotonic() - started < timeout_s
        time.sleep(0.05)
    return time.monotonic() - started


def published(driver: Driver, volume: csi.Volume, mode: int = RWX) -> Path:
    """Stage as a cluster does: until the first copy is here the answer is UNAVAILABLE, and it tries again."""
    for _ in range(5):
        try:
            driver.stage(volume, mode)
            break
        except grpc.RpcError as error:
            if error.code() is not Code.UNAVAILABLE:
                raise
    return driver.publish(volume, mode=mode)


def condition(driver: Driver, volume: csi.Volume, path: Path) -> csi.VolumeCondition:
    request = csi.NodeGetVolumeStatsRequest(volume_id=volume.volume_id, volume_path=str(path))
    return driver.rpc.NodeGetVolumeStats(request).volume_condition


def text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def edits(folder: Path) -> dict[str, str]:
    return {path.name: text(path) for path in folder.iterdir() if path.name.startswith("two")}


def test_copies_become_alike_within_the_bound_and_conflicts_keep_both(nodes: list[Driver]) -> None:
    volume = nodes[0].create(parameters=EVENTUAL)
    assert volume.volume_context["engine"] == "syncthing"
    here = published(nodes[0], volume)
    (here / "before").write_text("written before the second node came")
    there = published(nodes[1], volume)
    wait(lambda: text(there / "before") != "")
    (here / "one").write_text("from node0")
    wait(lambda: text(there / "one") == "from node0")
    (there / "two").write_text("from node1")
    wait(lambda: text(here / "two") == "from node1")
    (here / "one").unlink()
    wait(lambda: not (there / "one").exists())
    wait(lambda: not condition(nodes[0], volume, here).abnormal)
    wait(lambda: not condition(nodes[1], volume, there).abnormal)
    assert sorted(path.name for path in there.iterdir()) == ["before", "two"], "nothing of the engine is seen by pods"

    netns.cut("node1", 1, off=True)
    (here / "two").write_text("edited on node0")
    (there / "two").write_text("edited on node1")
    wait(lambda: "behind node node0" in condition(nodes[1], volume, there).message)
    wait(lambda: "5 s" in condition(nodes[0], volume, here).message)
    netns.cut("node1", 1, off=False)
    wait(lambda: len(edits(here)) == 2 and edits(here) == edits(there), 60)
    assert set(edits(here).values()) == {"edited on node0", "edited on node1"}
    for driver in nodes:
        (conflict,) = json.loads(ubnode(driver, "volumes", "conflicts", "--json").stdout)
        assert (conflict["volume"], conflict["file"]) == (volume.volume_id, "two")
        assert text(here / "two") == f"edited on {conflict['winner']}" != text(here / conflict["copy"])
        (row,) = json.loads(ubnode(driver, "volumes", "--json").stdout)
        assert (row["owner"], row["nodes"]) == ("node0", ["node0", "node1"])
        assert row["published"] == [str(driver.target(volume))]
        assert row["lag"] < 60
    counted = [nodes[0].pool / "volumes" / volume.volume_id / "share/conflicts", *nodes[1].root.glob("**/conflicts")]
    wait(lambda: [text(path) for path in counted] == ["1", "1"], 60)
    wait(lambda: not condition(nodes[1], volume, there).abnormal)

    with refused(Code.FAILED_PRECONDITION, naming="node1"):
        nodes[0].unpublish(volume)
        nodes[0].unstage(volume)
        nodes[0].delete(volume.volume_id)
    (there / "last").write_text("written just before the pod ended")
    nodes[1].unpublish(volume)
    nodes[1].unstage(volume)
    share = nodes[0].pool / "volumes" / volume.volume_id / "share"
    wait(lambda: text(share / "data/last") != "")
    replicas = nodes[1].root / "var/lib/ub-node/replicas"
    wait(lambda: list(replicas.iterdir()) == [], 60)
    wait(lambda: list((share / "nodes").glob("*.json")) == [])
    nodes[0].delete(volume.volume_id)


def test_the_bound_can_be_changed_wholly_or_not_at_all(nodes: list[Driver]) -> None:
    volume = nodes[0].create(parameters=EVENTUAL)

    def modify(**mutable: str) -> None:
        request = csi.ControllerModifyVolumeRequest(volume_id=volume.volume_id, mutable_parameters=mutable)
        nodes[0].controller.ControllerModifyVolume(request)

    def bound() -> str:
        request = csi.ControllerGetVolumeRequest(volume_id=volume.volume_id)
        return nodes[0].controller.ControllerGetVolume(request).volume.volume_context["maxStaleness"]

    modify(maxStaleness="30s")
    assert bound() == "30s"
    modify()
    for wrong in ({"maxStaleness": "60s", "colour": "red"}, {"maxStaleness": "never"}, {"maxStaleness": "1ms"}):
        with refused(Code.INVALID_ARGUMENT, naming=next(reversed(wrong.values())) if len(wrong) == 1 else "colour"):
            modify(**wrong)
        assert bound() == "30s"
    strong = nodes[0].create("strong")
    with refused(Code.INVALID_ARGUMENT, naming="eventual"):
        nodes[0].controller.ControllerModifyVolume(
            csi.ControllerModifyVolumeRequest(volume_id=strong.volume_id, mutable_parameters={"maxStaleness": "30s"})
        )
    nodes[0].delete(strong.volume_id)
    with refused(Code.INVALID_ARGUMENT, naming="SINGLE_NODE"):
        nodes[0].create("rwo", mode=RWO, parameters=EVENTUAL)


def model(nodes: list[Driver], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``ubnode model`` on the owner."""
    return ubnode(nodes[0], "model", *arguments, "--volume", "llm")


def moved(driver: Driver) -> int:
    """Return the bytes that Syncthing of a node has received so far."""
    daemon = Daemon(driver.root / "var/lib/ub-node/syncthing", driver.root / "run/ub-node/syncthing", None)
    return int(daemon.get("system/connections")["total"]["inBytesTotal"])


def weights(folder: Path, size: int) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(os.urandom(size))
    (folder / "name").write_text(folder.name)
    return folder


def test_each_node_has_its_own_copy_of_a_model_and_all_switch_when_all_have_it(
    nodes: list[Driver], tmp_path: Path
) -> None:
    volume = nodes[0].create("llm", mode=ROX, parameters={**EVENTUAL, "type": "model"})
    here, there = published(nodes[0], volume, ROX), published(nodes[1], volume, ROX)
    one = weights(tmp_path / "one", 32 << 20)
    pushed = model(nodes, "push", str(one), "--switch")
    assert pushed.returncode == 0, pushed.stderr
    assert text(here / "current/name") == "one"
    wait(lambda: text(there / "current/name") == "one")
    assert (there / "current").readlink() == (here / "current").readlink()
    wanted = (one / "model.safetensors").read_bytes()
    assert (there / "current/model.safetensors").read_bytes() == wanted
    with (
        (there / "current/model.safetensors").open("rb") as file,
        mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped,
    ):
        assert mapped[:16] == wanted[:16]
    with pytest.raises(OSError, match="Read-only"):
        (there / "mine").touch()

    # Another version, one percent of it new: that is what travels, and nobody shows it before everybody has it.
    netns.cut("node1", 1, off=True)
    two = tmp_path / "two"
    shutil.copytree(one, two)
    (two / "name").write_text("two")
    with (two / "model.safetensors").open("r+b") as changed:
        changed.seek(7 << 20)
        changed.write(os.urandom((32 << 20) // 100))
    before = moved(nodes[1])
    waiting = model(nodes, "push", str(two), "--switch", "--timeout", "1")
    assert waiting.returncode == 1
    assert "node1" in waiting.stderr
    assert text(here / "current/name") == text(there / "current/name") == "one"
    assert "node node1: 1 of 2 whole" in model(nodes, "list").stdout
    netns.cut("node1", 1, off=False)
    wait(lambda: text(here / "current/name") == text(there / "current/name") == "two", 60)
    assert (there / "current/model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    assert moved(nodes[1]) - before <= 0.03 * (32 << 20)
    assert model(nodes, "rollback").returncode == 0
    wait(lambda: text(here / "current/name") == text(there / "current/name") == "one")

    # Who does not want to wait for a lost node says so.
    netns.cut("node1", 1, off=True)
    assert model(nodes, "push", str(weights(tmp_path / "three", 1000)), "--switch", "--now").returncode == 0
    assert (text(here / "current/name"), text(there / "current/name")) == ("three", "one")


def test_a_full_disk_of_one_node_keeps_the_old_version_everywhere_and_is_told(
    nodes: list[Driver], tmp_path: Path
) -> None:
    volume = nodes[0].create("llm", mode=ROX, parameters={**EVENTUAL, "type": "model"})
    replicas = nodes[1].root / "var/lib/ub-node/replicas"
    replicas.mkdir(parents=True)
    mounts.mount("none", replicas, "tmpfs", "size=16m")
    here, there = published(nodes[0], volume, ROX), published(nodes[1], volume, ROX)
    assert model(nodes, "push", str(weights(tmp_path / "one", 4 << 20)), "--switch").returncode == 0
    wait(lambda: text(there / "current/name") == "one")
    waiting = model(nodes, "push", str(weights(tmp_path / "big", 24 << 20)), "--switch", "--timeout", "1")
    assert (waiting.returncode, "node1" in waiting.stderr) == (1, True)
    wait(lambda: condition(nodes[1], volume, there).abnormal, 60)
    wait(lambda: "space" in condition(nodes[1], volume, there).message, 60)
    assert text(here / "current/name") == text(there / "current/name") == "one"


def test_one_writer_means_that_other_nodes_can_only_read(nodes: list[Driver]) -> None:
    volume = nodes[0].create(parameters={**EVENTUAL, "writers": "single"})
    here = published(nodes[0], volume)
    for _ in range(5):
        with suppress(grpc.RpcError):
            nodes[1].stage(volume)
            break
    with refused(Code.FAILED_PRECONDITION, naming="node0"):
        nodes[1].publish(volume)
    there = nodes[1].publish(volume, readonly=True)
    (here / "one").write_text("from the writer")
    wait(lambda: text(there / "one") == "from the writer")
    with pytest.raises(OSError, match="Read-only"):
        (there / "two").touch()
    with pytest.raises(OSError, match="Read-only"):
        (nodes[1].staging(volume) / "two").touch()


def test_what_inotify_lost_is_found_by_looking(nodes: list[Driver]) -> None:
    volume = nodes[0].create(parameters=EVENTUAL)
    here, there = published(nodes[0], volume), published(nodes[1], volume)
    for driver in nodes:
        daemon = Daemon(driver.root / "var/lib/ub-node/syncthing", driver.root / "run/ub-node/syncthing", None)
        folder = daemon.get(f"config/folders/{volume.volume_id}")
        daemon.put(f"config/folders/{volume.volume_id}", {**folder, "fsWatcherEnabled": False, "rescanIntervalS": 3600})
    for number in range(50):
        (here / f"file-{number}").write_text("found without an event")
    wait(lambda: len(list(there.glob("file-*"))) == 50)


def test_copies_are_kept_alike_while_no_driver_runs_and_the_daemon_is_found_again(nodes: list[Driver]) -> None:
    volume = nodes[0].create(parameters=EVENTUAL)
    here, there = published(nodes[0], volume), published(nodes[1], volume)
    (here / "one").write_text("before")
    wait(lambda: text(there / "one") == "before", 60)
    pids = [driver.root / "run/ub-node/syncthing/pid" for driver in nodes]
    before = [path.read_text() for path in pids]
    for driver in nodes:
        driver.kill()
    (here / "one").write_text("meanwhile")
    wait(lambda: text(there / "one") == "meanwhile", 60)
    for driver in nodes:
        driver.restart()
    assert [path.read_text() for path in pids] == before
    assert all((Path("/proc") / pid).exists() for pid in before)
    (there / "two").write_text("after")
    wait(lambda: text(here / "two") == "after", 60)
    wait(lambda: not condition(nodes[1], volume, there).abnormal, 60)

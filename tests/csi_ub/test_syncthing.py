"""Eventual volumes: copies on every node that become alike, within a bound that is measured."""

import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from csi_ub.syncthing.daemon import Daemon
from tests.csi_ub import netns
from tests.csi_ub.driver import REPO, ROX, RWO, RWX, Driver, StartDriver, environment, refused

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


def wait(until: Callable[[], bool], timeout_s: float = 30) -> float:
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
    assert wait(lambda: text(there / "one") == "from node0") < 5
    (there / "two").write_text("from node1")
    assert wait(lambda: text(here / "two") == "from node1") < 5
    (here / "one").unlink()
    wait(lambda: not (there / "one").exists())
    assert not condition(nodes[0], volume, here).abnormal
    assert not condition(nodes[1], volume, there).abnormal
    assert sorted(path.name for path in there.iterdir()) == ["before", "two"], "nothing of the engine is seen by pods"

    netns.cut("node1", 1, off=True)
    (here / "two").write_text("edited on node0")
    (there / "two").write_text("edited on node1")
    wait(lambda: condition(nodes[1], volume, there).abnormal)
    assert "node0" in condition(nodes[1], volume, there).message
    assert "5 s" in condition(nodes[0], volume, here).message
    netns.cut("node1", 1, off=False)
    wait(lambda: len(edits(here)) == 2 and edits(here) == edits(there), 60)
    assert set(edits(here).values()) == {"edited on node0", "edited on node1"}
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


def test_each_node_has_its_own_copy_of_a_model_and_switches_when_it_has_all_of_it(
    nodes: list[Driver], tmp_path: Path
) -> None:
    volume = nodes[0].create("llm", mode=ROX, parameters={**EVENTUAL, "type": "model"})
    here, there = published(nodes[0], volume, ROX), published(nodes[1], volume, ROX)

    def push(text_: str) -> None:
        source = tmp_path / text_
        source.mkdir()
        (source / "model.safetensors").write_bytes(os.urandom(8 << 20))
        (source / "name").write_text(text_)
        command = [sys.executable, "-m", "ubnode", "model", "push", str(source), "--volume", "llm", "--switch"]
        subprocess.run(command, check=True, cwd=REPO, env=environment(UB_ROOT=str(nodes[0].root)), capture_output=True)

    wanted = b""
    for version in ("one", "two"):
        push(version)
        assert text(here / "current/name") == version
        wait(lambda version=version: text(there / "current/name") == version)  # type: ignore[misc]
        assert (there / "current").readlink() == (here / "current").readlink()
        wanted = (here / "current/model.safetensors").read_bytes()
        assert (there / "current/model.safetensors").read_bytes() == wanted
    with (
        (there / "current/model.safetensors").open("rb") as file,
        mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped,
    ):
        assert mapped[:16] == wanted[:16]
    with pytest.raises(OSError, match="Read-only"):
        (there / "mine").touch()

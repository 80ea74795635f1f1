"""A volume that nobody uses goes from strong to eventual and back: all of it, or not at all."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from csi_ub.config import Config
from csi_ub.connect import connect
from csi_ub.engines import Engines
from csi_ub.engines.bind import BindEngine
from csi_ub.model import AccessMode, Attachment, Consistency, Spec, Volume
from csi_ub.pool import Pool
from csi_ub.reasons import InUse
from csi_ub.share import boot_id
from csi_ub.switching import switch
from csi_ub.volumes import Volumes
from tests.csi_ub import netns
from tests.csi_ub.driver import RWO, Driver, StartDriver, refused
from ubhost.errors import InvalidRequest
from ubhost.roots import Roots

Code = grpc.StatusCode
RWX = AccessMode.MULTI_NODE_MULTI_WRITER


class Fake(BindEngine):
    """An engine that tells what it is asked for, and dies before the step number ``dies_at``."""

    def __init__(self, name: str, told: list[str], dies_at: int) -> None:
        self.name = name
        self._told = told
        self._dies_at = dies_at

    def _tell(self, what: str) -> None:
        if len(self._told) == self._dies_at:
            raise KeyboardInterrupt
        self._told.append(f"{self.name} {what}")

    def refuse_copies(self, volume: Volume) -> None:
        self._tell("refuse_copies")

    def retire(self, volume: Volume, pool: Pool) -> None:
        self._tell("retire")

    def forget(self, volume: Volume, pool: Pool) -> None:
        self._tell("forget")

    def prepare(self, volume: Volume, pool: Pool) -> Volume:
        self._tell("prepare")
        return volume


def world(folder: Path, dies_at: int = 99) -> tuple[Volumes, list[str]]:
    told: list[str] = []
    fakes = {name: Fake(name, told, dies_at) for name in ("glusterfs", "syncthing")}
    volumes = connect("node0", Config(), Roots(folder))
    volumes.pools[0].open()
    engines = Engines(fakes, has_peers=True)
    return Volumes(volumes.node, volumes.pools, engines, (), "default", volumes.peers), told


def made(volumes: Volumes, **more: object) -> Volume:
    pool = volumes.pools[0]
    spec = Spec(**more)  # type: ignore[arg-type]
    want = Volume("", "data", "node0", pool.name, spec, modes=frozenset({RWX}), engine="glusterfs", port=24100)
    volume = pool.create(want)
    (pool.volumes.home / volume.id / "share/data/file").write_text("stays")
    return volume


EVENTUAL = Spec(consistency=Consistency.EVENTUAL)


def test_a_crash_at_any_step_leaves_one_of_the_two_and_a_repeated_call_finishes(tmp_path: Path) -> None:
    volumes, told = world(tmp_path / "whole")
    volume = made(volumes)
    changed = switch(volumes, volume, volumes.pools[0], EVENTUAL)
    asked = "glusterfs refuse_copies"
    assert told == [asked, "glusterfs retire", asked, "glusterfs forget", "syncthing prepare"]
    assert (changed.engine, changed.spec.consistency, changed.port) == ("syncthing", Consistency.EVENTUAL, 0)
    for step in range(len(told)):
        volumes, _ = world(tmp_path / str(step), dies_at=step)
        pool, volume = volumes.pools[0], made(volumes)
        with pytest.raises(KeyboardInterrupt):
            switch(volumes, volume, pool, EVENTUAL)
        after = pool.volumes.find(volume.id)
        switched = replace(volume, spec=EVENTUAL, engine="syncthing", port=0)
        assert after == (volume if step < 4 else switched)
        volumes, _ = world(tmp_path / str(step))
        assert after is not None
        if after == volume:
            switch(volumes, after, volumes.pools[0], EVENTUAL)
        assert volumes.pools[0].volumes.find(volume.id) == switched
        assert (volumes.pools[0].volumes.home / volume.id / "share/data/file").read_text() == "stays"


def test_a_volume_in_use_stays_as_it_is(tmp_path: Path) -> None:
    volumes, told = world(tmp_path)
    pool, volume = volumes.pools[0], made(volumes)
    with pool.share(volume.id) as share:
        share.attach(Attachment("node1", RWX, boot_id()))
    with pytest.raises(InUse, match="node1"):
        switch(volumes, volume, pool, EVENTUAL)
    assert (told, pool.volumes.find(volume.id)) == ([], volume)


def test_a_copy_that_began_while_others_were_asked_keeps_the_old_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volumes, told = world(tmp_path)
    pool, volume = volumes.pools[0], made(volumes)

    def refuse_copies(self: Fake, volume: Volume) -> None:
        if "glusterfs retire" in told:
            raise InUse(f"volume {volume.id} has a copy on node node1")

    monkeypatch.setattr(Fake, "refuse_copies", refuse_copies)
    with pytest.raises(InUse, match="node1"):
        switch(volumes, volume, pool, EVENTUAL)
    assert (told, pool.volumes.find(volume.id)) == (["glusterfs retire", "glusterfs prepare"], volume)


def test_what_its_class_asked_for_is_not_taken_back(tmp_path: Path) -> None:
    volumes, told = world(tmp_path)
    for more in ({"replicas": 3}, {"engine": "glusterfs"}):
        volume = made(volumes, **more)
        with pytest.raises(InvalidRequest, match=next(iter(more))):
            switch(volumes, volume, volumes.pools[0], EVENTUAL)
    assert told == []


def wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def nodes(start: StartDriver) -> Iterator[list[Driver]]:
    names = ["node0", "node1"]
    with netns.network(names, "10.77.6") as addresses:
        peers = [{"node": name, "address": address} for name, address in addresses.items()]
        drivers = [start(name, config={"peers": peers}, within=tuple(netns.inside(name))) for name in names]
        yield drivers
        for driver in drivers:
            driver.stop()
            with suppress(OSError):
                os.kill(int((driver.root / "run/ub-node/syncthing/pid").read_text()), signal.SIGKILL)


def modify(driver: Driver, volume: csi.Volume, **mutable: str) -> None:
    request = csi.ControllerModifyVolumeRequest(volume_id=volume.volume_id, mutable_parameters=mutable)
    driver.controller.ControllerModifyVolume(request)


def engine(driver: Driver, volume: csi.Volume) -> str:
    request = csi.ControllerGetVolumeRequest(volume_id=volume.volume_id)
    return driver.controller.ControllerGetVolume(request).volume.volume_context["engine"]


def published(driver: Driver, volume: csi.Volume) -> Path:
    for _ in range(5):
        with suppress(grpc.RpcError):
            driver.stage(volume)
            break
    return driver.publish(volume)


def given_back(driver: Driver, volume: csi.Volume) -> None:
    driver.unpublish(volume)
    driver.unstage(volume)


@pytest.mark.kernel
@pytest.mark.skipif(not (shutil.which("syncthing") and shutil.which("glusterfsd")), reason="an engine is missing")
def test_a_volume_goes_there_and_back_with_all_its_files_and_an_old_persistent_volume(nodes: list[Driver]) -> None:
    volume = nodes[0].create()  # its PersistentVolume says glusterfs for ever
    (published(nodes[1], volume) / "strong").write_text("1")
    with refused(Code.FAILED_PRECONDITION, naming="node1"):
        modify(nodes[0], volume, consistency="eventual")
    given_back(nodes[1], volume)
    for wrong in ({"consistency": "perfect"}, {"consistency": "eventual", "colour": "red"}):
        with refused(Code.INVALID_ARGUMENT):
            modify(nodes[0], volume, **wrong)
    assert engine(nodes[0], volume) == "glusterfs"
    for _ in range(2):
        modify(nodes[0], volume, consistency="eventual", maxStaleness="30s")
        assert engine(nodes[0], volume) == "syncthing"

    there = published(nodes[1], volume)
    assert (there / "strong").read_text() == "1"
    assert (nodes[1].root / "var/lib/ub-node/replicas" / volume.volume_id).is_dir()
    (there / "eventual").write_text("2")
    given_back(nodes[1], volume)

    def is_back() -> bool:
        try:
            modify(nodes[0], volume, consistency="strong")
        except grpc.RpcError as error:
            if error.code() is not Code.FAILED_PRECONDITION:
                raise
            return False
        return True

    wait(is_back)  # not before the copy of node1 has been given back
    there = published(nodes[1], volume)
    assert {path.name: path.read_text() for path in there.iterdir()} == {"strong": "1", "eventual": "2"}
    (there / "strong").write_text("3")
    here = published(nodes[0], volume)
    assert (here / "strong").read_text() == "3"
    for node in nodes:
        given_back(node, volume)
    nodes[0].delete(volume.volume_id)

    single = nodes[0].create("single", mode=RWO)
    with refused(Code.INVALID_ARGUMENT, naming="SINGLE_NODE"):
        modify(nodes[0], single, consistency="eventual")

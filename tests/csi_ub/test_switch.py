"""A volume that nobody uses goes between strong, eventual and close-to-open: all of it, or not at all."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from csi_ub import supervisor
from csi_ub.config import Config
from csi_ub.connect import connect
from csi_ub.engines import Engines
from csi_ub.engines.bind import BindEngine
from csi_ub.model import AccessMode, Attachment, Consistency, Spec, Volume
from csi_ub.pool import Pool
from csi_ub.reasons import InUse, Unreachable
from csi_ub.share import boot_id
from csi_ub.switching import switch
from csi_ub.volumes import Volumes
from tests.csi_ub import netns
from tests.csi_ub.driver import RWO, Driver, StartDriver, refused
from ubhost.errors import InvalidRequest, Unsupported
from ubhost.roots import Roots

Code = grpc.StatusCode
RWX = AccessMode.MULTI_NODE_MULTI_WRITER


ENGINES = {
    Consistency.STRONG: "glusterfs",
    Consistency.EVENTUAL: "syncthing",
    Consistency.CLOSE_TO_OPEN: "nfs",
}


class Fake(BindEngine):
    """An engine that tells what it is asked for, and dies before the step number ``dies_at``."""

    def __init__(self, name: str, told: list[str], dies_at: int) -> None:
        self.name = name
        self.spans_machines = True
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

    def context(self, volume: Volume, pool: Pool) -> Mapping[str, str]:
        return {**super().context(volume, pool), "port": str(volume.port)}

    def look_after(self, volume: Volume, pool: Pool) -> None:
        self.prepare(volume, pool)


def world(folder: Path, dies_at: int = 99) -> tuple[Volumes, list[str]]:
    told: list[str] = []
    fakes = {name: Fake(name, told, dies_at) for name in ENGINES.values()}
    volumes = connect("node0", Config(), Roots(folder))
    volumes.pools[0].open()
    engines = Engines(fakes, has_peers=True)
    return Volumes(volumes.node, volumes.pools, engines, (), "default", volumes.peers), told


def made(volumes: Volumes, **more: object) -> Volume:
    pool = volumes.pools[0]
    spec = Spec(**more)  # type: ignore[arg-type]
    engine = ENGINES[spec.consistency]
    port = 24100 if engine == "glusterfs" else 0
    want = Volume("", "data", "node0", pool.name, spec, modes=frozenset({RWX}), engine=engine, port=port)
    volume = pool.create(want)
    (pool.volumes.home / volume.id / "share/data/file").write_text("stays")
    return volume


EVENTUAL = Spec(consistency=Consistency.EVENTUAL)


@pytest.mark.parametrize(("before", "wanted"), list(permutations(Consistency, 2)), ids=lambda each: each.value)
def test_a_crash_at_any_step_leaves_one_of_the_two_and_a_repeated_call_finishes(
    before: Consistency, wanted: Consistency, tmp_path: Path
) -> None:
    volumes, told = world(tmp_path / "whole")
    old, new, spec = ENGINES[before], ENGINES[wanted], Spec(consistency=wanted)
    changed = switch(volumes, made(volumes, consistency=before), volumes.pools[0], spec)
    asked = f"{old} refuse_copies"
    assert told == [asked, f"{old} retire", asked, f"{old} forget", f"{new} prepare"]
    assert (changed.engine, changed.spec.consistency, changed.port) == (new, wanted, 0)
    for step in range(len(told)):
        volumes, _ = world(tmp_path / str(step), dies_at=step)
        pool, volume = volumes.pools[0], made(volumes, consistency=before)
        with pytest.raises(KeyboardInterrupt):
            switch(volumes, volume, pool, spec)
        after = pool.volumes.find(volume.id)
        switched = replace(volume, spec=spec, engine=new, port=0)
        assert after == (volume if step < 4 else switched)
        volumes, told = world(tmp_path / str(step))
        assert after is not None
        supervisor.look_after(volumes)
        assert told == [f"{after.engine} prepare"], "it is served by the one that it is of, whoever calls again or not"
        if after == volume:
            switch(volumes, after, volumes.pools[0], spec)
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


def test_notes_of_an_earlier_boot_are_nobody_to_the_next_engine(tmp_path: Path) -> None:
    volumes, _ = world(tmp_path)
    pool = volumes.pools[0]
    volumes = replace(volumes, engines=Engines({**volumes.engines.known, "bind": BindEngine()}, has_peers=True))
    volume = pool.create(Volume("", "data", "node0", pool.name, Spec(), modes=frozenset({RWX})))
    with pool.share(volume.id) as share:
        share.attach(Attachment("node1", RWX, "an earlier boot"))
    switch(volumes, volume, pool, EVENTUAL)
    assert pool.users(volume.id) == ()


def test_a_volume_that_other_nodes_reach_stays_with_an_engine_that_reaches_them(tmp_path: Path) -> None:
    volumes, told = world(tmp_path)
    pool, there = volumes.pools[0], volumes.engines.known
    alone = {"bind": BindEngine(), **{name: there[name] for name in ("syncthing", "nfs")}}
    for before in (Consistency.EVENTUAL, Consistency.CLOSE_TO_OPEN):
        volume = made(volumes, consistency=before)
        among_peers = replace(volumes, engines=Engines(alone, has_peers=True))
        with pytest.raises(Unsupported, match=r"has only bind.*GlusterFS"):
            switch(among_peers, volume, pool, Spec())
        assert (told, pool.volumes.find(volume.id)) == ([], volume)
        assert switch(replace(volumes, engines=Engines(alone)), volume, pool, Spec()).engine == "bind", "nobody else"
        told.clear()


def test_who_brought_a_volume_by_the_old_engine_while_it_was_switched_is_told_to_bring_it_again(tmp_path: Path) -> None:
    volumes, _ = world(tmp_path)
    pool, bind = volumes.pools[0], BindEngine()
    volumes = replace(volumes, engines=Engines({**volumes.engines.known, "bind": bind}, has_peers=True))
    volume = pool.create(Volume("", "data", "node0", pool.name, Spec(), modes=frozenset({RWX})))
    reach = volumes.reach(volume, pool)
    os.close(bind.stage(reach))
    switch(volumes, volume, pool, EVENTUAL)
    with pytest.raises(Unreachable, match="stage it again"):
        bind.attach(reach, Attachment("node0", RWX, boot_id()))
    assert pool.users(volume.id) == ()


def test_a_node_on_the_same_kernel_goes_by_the_record_not_by_its_persistent_volume(tmp_path: Path) -> None:
    volumes, _ = world(tmp_path)
    pool = volumes.pools[0]
    engines = Engines({**volumes.engines.known, "bind": BindEngine()}, has_peers=True)
    volumes = replace(volumes, engines=engines)
    volume = pool.create(Volume("", "data", "node0", pool.name, Spec(), modes=frozenset({RWX})))
    neighbour, context = replace(volumes, node="node1", pools=()), dict(volumes.reach(volume, pool).context)
    assert neighbour.find(volume.id, context).context["engine"] == "bind"
    switch(volumes, volume, pool, EVENTUAL)
    assert neighbour.find(volume.id, context).context["engine"] == "syncthing"


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

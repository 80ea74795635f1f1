"""Memory volumes on DAX devices that nodes share: what is in them, and who has them.

The devices are plain files, and two nodes have the same ones. Two kernels with a real one are in
e2e/outside/test_shared_dax.py.
"""

import mmap
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from csi_ub.config import DaxRegion
from csi_ub.engines.base import Reach
from csi_ub.memory.dax import Dax, look, zero
from csi_ub.model import Attachment, Consistency, Lease
from csi_ub.openfiles import users_of
from csi_ub.reasons import InUse, Unreachable
from tests.csi_ub import dax
from tests.csi_ub.dax import RWX, World, manifest
from tests.csi_ub.driver import REPO, environment
from tests.csi_ub.pools import unmount_below
from ubhost.errors import Busy, HostFault, NotFound, Unsupported
from ubhost.kernel import mounts

MiB = 1 << 20
STRONG, EVENTUAL = Consistency.STRONG, Consistency.EVENTUAL


@pytest.fixture
def world(tmp_path: Path) -> World:
    return dax.build(tmp_path)


# What is in it


def test_memory_is_all_zeroes_before_a_volume_has_it_whatever_the_last_one_left(world: World) -> None:
    volume = world.create()
    assert dax.is_clean(world.memory("small"))
    assert not dax.is_clean(world.memory("large")), "that is nobody's business yet"
    dax.soil(world.memory("small"))
    assert world.engine("node0").prepare(volume, world.pools["node0"]) == volume
    assert not dax.is_clean(world.memory("small")), "it is the volume's own now"
    world.delete(volume)
    world.create(name="next")
    assert dax.is_clean(world.memory("small"))


def test_filling_with_zeroes_stops_in_time_and_goes_on_where_it_stopped(world: World, tmp_path: Path) -> None:
    memory = dax.memory(tmp_path / "huge", 66 * MiB)
    dax.device(world.root("node0"), "dax9.0", memory)
    found = look(world.root("node0") / "sys", "dax9.0")
    done = zero(memory, found, 0, until=0.0, is_coherent=True)
    assert 0 < done < found.size, "a part at a time, but one at least"
    dax.soil(memory)
    assert zero(memory, found, done, until=time.monotonic() + 60, is_coherent=True) == found.size
    text = memory.read_bytes()
    assert dax.SECRET in text[:done]
    assert not any(text[done:]), "what was done is not done again"

    world.shared = (DaxRegion("huge", "node0", {"node0": "dax9.0"}, coherent=True),)
    volume, pool = world.record(name="huge")
    hasty = replace(world.engine("node0"), zero_s=0.0)
    with pytest.raises(Busy, match=f"{done} of {found.size}"):
        hasty.prepare(volume, pool)
    assert hasty.prepare(pool.volumes.find(volume.id) or volume, pool).lease == Lease("huge", found.size)


def test_nobody_gets_memory_before_it_is_all_zeroes(world: World) -> None:
    volume, pool = world.record()
    half = pool.volumes.update(volume.id, lambda it: replace(it, lease=Lease("small", 2 * MiB)))
    assert not world.engine("node0").is_prepared(half)
    with pytest.raises(Unsupported, match="does not share"):
        world.stage(half, "node1")
    dax.soil(world.memory("small"))
    whole = world.engine("node0").prepare(half, pool)
    assert whole.lease == Lease("small", 4 * MiB)
    assert not any(world.memory("small").read_bytes()[2 * MiB :])
    world.stage(whole, "node1")


@pytest.mark.kernel
def test_a_driver_killed_at_any_line_gives_nobody_what_another_left(tmp_path: Path) -> None:
    mounts.mount("none", tmp_path, "tmpfs")  # a killed process loses nothing that it wrote, flushed or not
    every = os.environ.get("UB_KILL_EVERY", "17")
    command = [sys.executable, "-m", "tests.csi_ub.kill_memory", str(tmp_path), every]
    try:
        done = subprocess.run(command, cwd=REPO, env=environment(), capture_output=True, text=True, timeout=300)
    finally:
        unmount_below(tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50, "the calls have more lines than that"


def test_memory_that_some_program_has_open_is_not_filled_with_zeroes(world: World) -> None:
    here = str(os.getpid())
    with world.memory("small").open("r+b") as file, mmap.mmap(file.fileno(), 0), pytest.raises(InUse, match=here):
        world.create()
    assert not dax.is_clean(world.memory("small"))
    volume = next(world.pools["node0"].volumes.all())
    world.engine("node0").prepare(volume, world.pools["node0"])
    assert dax.is_clean(world.memory("small"))


@pytest.mark.kernel
def test_memory_that_cannot_be_written_is_an_error_and_not_the_end_of_the_driver(tmp_path: Path) -> None:
    mounts.mount("none", tmp_path, "tmpfs", data="size=1m")  # a store behind its end is a SIGBUS, as with a defect
    try:
        memory = tmp_path / "dax0.0"
        memory.touch()
        os.truncate(memory, 4 * MiB)
        with pytest.raises(HostFault, match=r"zeroes at [0-9]+"):
            zero(memory, Dax("dax0.0", 4 * MiB, 2 * MiB), 0, until=time.monotonic() + 60, is_coherent=True)
    finally:
        unmount_below(tmp_path)


def test_memory_whose_device_changed_its_size_is_not_touched(world: World) -> None:
    volume, pool = world.record()
    pool.volumes.update(volume.id, lambda it: replace(it, lease=Lease("small")))
    (world.root("node0") / "sys/bus/dax/devices/dax0.0/size").write_text("12")
    with pytest.raises(HostFault, match="12"):
        world.engine("node0").prepare(pool.volumes.find(volume.id) or volume, pool)
    assert not dax.is_clean(world.memory("small"))


# Who has it


def test_nodes_have_the_memory_by_their_own_names_of_it_and_the_owner_knows_who_does(world: World) -> None:
    volume = world.create()
    here, there = world.stage(volume, "node0"), world.stage(volume, "node1")
    assert (here / "dax0.0").samefile(there / "dax2.0")
    told = manifest(there)
    assert told["memids"] == []
    assert told["devices"] == [{"path": "dax2.0", "size": 4 * MiB, "align": 2 * MiB}]
    assert (told["consistency"], told["open_flags"], told["ownership"]) == ("strong", ["O_RDWR"], "none")
    pool = world.pools["node0"]
    assert sorted(each.node for each in pool.users(volume.id)) == ["node0", "node1"]
    assert world.engine("node0").nodes(volume) == ("node0", "node1")
    for node, others in (("node0", "node1"), ("node1", "")):
        with pytest.raises(InUse, match=node):
            world.delete(volume)
        for _ in range(2):
            world.engine(node).detach(world.reach(volume, node), node)
        assert ", ".join(each.node for each in pool.users(volume.id)) == others
    assert not here.exists()
    world.delete(volume)
    world.engine("node1").detach(Reach(volume.id, "node0", {"region": "small"}, None), "node1")


def test_a_node_lets_go_only_when_none_of_its_processes_has_the_device(world: World) -> None:
    volume = world.create()
    pod = world.stage(volume, "node1")
    engine, reach = world.engine("node1"), world.reach(volume, "node1")
    opens = "import sys, time; file = open(sys.argv[1], 'r+b'); print(1, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", opens, str(pod / "dax2.0")], stdout=subprocess.PIPE)
    assert process.stdout
    try:
        process.stdout.readline()
        assert users_of(world.root("node1") / "dev/dax2.0") == [process.pid]
        with pytest.raises(InUse, match=str(process.pid)):
            engine.detach(reach, "node1")
        assert pod.exists()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    engine.detach(reach, "node1")
    assert not pod.exists()


def test_every_node_of_one_character_device_is_the_device(tmp_path: Path) -> None:
    with Path("/dev/null").open() as _:
        assert os.getpid() in users_of(Path("/dev/null"))
    assert os.getpid() not in users_of(Path("/dev/full"))
    with pytest.raises(OSError, match="absent"):
        users_of(tmp_path / "absent")


def test_an_owner_that_is_silent_is_asked_again_and_nothing_is_forgotten(world: World) -> None:
    volume = world.create()
    pod, reach = world.stage(volume, "node1"), world.reach(volume, "node1")
    engine = world.engine("node1")
    world.wire.silent.add("node0")
    with pytest.raises(Unreachable):
        engine.detach(reach, "node1")
    assert pod.exists()
    with pytest.raises(Unreachable):
        engine.attach(reach, Attachment("node1", RWX, boot="b"))
    world.wire.silent.clear()
    engine.detach(reach, "node1")
    assert world.pools["node0"].users(volume.id) == ()


def test_a_node_that_has_memory_is_not_shut_out_from_it_by_words(world: World) -> None:
    volume, pool, engine = world.create(), world.pools["node0"], world.engine("node0")
    world.stage(volume, "node1")
    with pytest.raises(InUse, match="node1"):
        engine.expel(volume, pool, "node1")
    with pytest.raises(Unsupported, match="shut out"):
        engine.fence(replace(volume, fenced=("node1",)), pool)
    assert [each.node for each in pool.users(volume.id)] == ["node1"]


def test_a_node_without_the_device_or_with_another_owner_in_its_configuration_is_told_so(world: World) -> None:
    volume = world.create()
    reach = world.reach(volume, "node1")
    engine = world.engine("node1")
    region = world.shared[0]
    alone = replace(region, devices={"node0": "dax0.0"})
    for wrong, reason, words in (
        (alone, Unsupported, "does not share"),
        (replace(region, owner="node1"), HostFault, "node1's"),
        (replace(region, devices={"node0": "dax0.0", "node1": "dax3.0"}), HostFault, str(8 * MiB)),
        (replace(region, devices={"node0": "dax0.0", "node1": "dax7.0"}), NotFound, "dax7.0"),
    ):
        with pytest.raises(reason, match=words):
            replace(engine, shared=(wrong,)).stage(reach)
    forged = {**reach.context, "region": "large"}
    with pytest.raises(HostFault):
        engine.stage(replace(reach, context=forged))


def test_a_device_that_goes_is_an_abnormal_volume(world: World) -> None:
    volume = world.create()
    engine, reach = world.engine("node1"), world.reach(volume, "node1")
    world.stage(volume, "node1")
    engine.verify(reach)
    (world.root("node1") / "dev/dax2.0").unlink()
    with pytest.raises(HostFault, match="dax2"):
        engine.verify(reach)

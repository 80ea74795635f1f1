"""Memory volumes on DAX devices that nodes share: the devices are plain files, and two nodes have the same ones.

Two kernels with a real one are in e2e/outside/test_shared_dax.py.
"""

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from csi_ub.config import Config, DaxRegion, PoolType
from csi_ub.engines import Engines
from csi_ub.engines.base import Reach
from csi_ub.engines.dax import DaxEngine
from csi_ub.engines.shm import ShmEngine
from csi_ub.memory.dax import Dax, look, zero
from csi_ub.memory.regions import Region, choose
from csi_ub.model import AccessMode, Attachment, Consistency, Lease, Spec, Volume, VolumeType
from csi_ub.openfiles import users_of
from csi_ub.peers.channel import Peers
from csi_ub.pool import Pool
from csi_ub.pools import space
from csi_ub.reasons import InUse, OutOfRange, Unreachable
from tests.csi_ub import dax
from tests.csi_ub.driver import REPO, Driver, capability, environment, refused
from tests.csi_ub.pools import unmount_below
from ubhost.config import convert
from ubhost.errors import Exhausted, HostFault, InvalidRequest, NotFound, Unsupported
from ubhost.kernel import caches, mounts
from ubhost.ubse.client import Ubse

Code = grpc.StatusCode
MiB = 1 << 20
STRONG, EVENTUAL = Consistency.STRONG, Consistency.EVENTUAL
RWX = AccessMode.MULTI_NODE_MULTI_WRITER


class Wire(Peers):
    """Peers in one process: what is asked of another node is answered by its verbs, unless it is ``silent``."""

    nodes: "dict[str, Wire]" = {}  # noqa: RUF012 - each test has a class of its own
    silent: "set[str]" = set()  # noqa: RUF012

    def ask(self, node: str, verb: str, content: dict[str, object], timeout_s: float = 1) -> dict[str, object]:
        if node in self.silent:
            raise Unreachable(f"node {node} does not answer {verb}")
        return self.nodes[node].verbs[verb](content)


@dataclass
class World:
    """Node0 and node1 share two regions, ``small`` of node0 and ``large``, each of which has its device twice."""

    folder: Path
    wire: type[Wire]
    pools: dict[str, Pool]
    shared: tuple[DaxRegion, ...]
    quotas: dict[str, int]

    def memory(self, region: str) -> Path:
        return self.folder / region

    def root(self, node: str) -> Path:
        return self.folder / node

    def engine(self, node: str) -> DaxEngine:
        """Return the engine of a node that was started just now."""
        root, peers = self.root(node), self.wire(node)
        pools = (self.pools[node],)
        engine = DaxEngine(root / "dev", root / "run/memory", self.quotas, root / "sys", self.shared, pools, peers)
        for verb, answer in engine.verbs().items():
            peers.offer(verb, answer)
        self.wire.nodes[node] = peers
        return engine

    def record(self, node: str = "node0", name: str = "pvc", size: int = 0, **spec: object) -> tuple[Volume, Pool]:
        """Make a volume as CreateVolume does, but for ``prepare``."""
        engine, pool = self.engine(node), self.pools[node]
        want = Spec(type=VolumeType.MEMORY, **spec)  # type: ignore[arg-type]
        volume = Volume("", name, node, pool.name, want, size=size, engine=engine.name)
        with pool.volumes.name_lock(name):
            return pool.create(replace(volume, size=engine.room_for(volume, 0, pool))), pool

    def create(self, node: str = "node0", name: str = "pvc", size: int = 0, **spec: object) -> Volume:
        volume, pool = self.record(node, name, size, **spec)
        return self.engine(node).prepare(volume, pool)

    def reach(self, volume: Volume, node: str = "node0") -> Reach:
        owner = self.engine(volume.owner)
        pool = self.pools[volume.owner]
        context = owner.context(pool.volumes.find(volume.id) or volume, pool)
        return Reach(volume.id, volume.owner, context, pool if volume.owner == node else None)

    def stage(self, volume: Volume, node: str) -> Path:
        engine, reach = self.engine(node), self.reach(volume, node)
        os.close(engine.stage(reach))
        engine.attach(reach, Attachment(node, RWX, boot=f"boot of {node}"))
        return engine.place(reach)

    def delete(self, volume: Volume) -> None:
        pool, engine = self.pools[volume.owner], self.engine(volume.owner)
        pool.delete(volume.id, lambda it: engine.retire(it, pool), lambda it: engine.prepare(it, pool))


@pytest.fixture
def world(tmp_path: Path) -> World:
    pools = {}
    for node in ("node0", "node1"):
        (tmp_path / node / "pool").mkdir(parents=True)
        pools[node] = Pool("default", tmp_path / node / "pool", space(PoolType.DIR))
        pools[node].open()
    shared = []
    for number, (name, size) in enumerate((("small", 4 * MiB), ("large", 8 * MiB))):
        memory = dax.memory(tmp_path / name, size)
        devices = {"node0": f"dax{number}.0", "node1": f"dax{number + 2}.0"}
        for node, device in devices.items():
            dax.device(tmp_path / node, device, memory)
        shared.append(DaxRegion(name, "node0", devices, coherent=True))
    return World(tmp_path, type("OwnWire", (Wire,), {"nodes": {}, "silent": set()}), pools, tuple(shared), {})


def manifest(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "manifest.json").read_text())
    return found


# Which region a volume gets


def test_the_smallest_region_that_fits_is_chosen_and_coherent_ones_are_kept_for_who_needs_them() -> None:
    small, large = Region("small", 4, is_coherent=True), Region("large", 9, is_coherent=True)
    loose = Region("loose", 4, is_coherent=False)
    every = [large, small, loose]
    assert choose(every, 0, 0, STRONG) == choose(every, 4, 8, STRONG) == small
    assert choose(every, 5, 0, STRONG) == choose(every, 5, 9, EVENTUAL) == large
    assert choose(every, 0, 0, EVENTUAL) == loose
    assert choose([small, Region("unseen", None, is_coherent=True)], 0, 0, STRONG) == small


def test_what_cannot_be_had_now_is_told_from_what_never_can() -> None:
    taken, large = Region("taken", 4, is_coherent=True, holder="of volume v"), Region("large", 9, is_coherent=True)
    with pytest.raises(OutOfRange, match="large"):
        choose([taken, large], 10, 0, STRONG)
    with pytest.raises(OutOfRange):
        choose([large], 1, 8, STRONG)
    with pytest.raises(OutOfRange):
        choose([], 1, 0, EVENTUAL)
    with pytest.raises(Exhausted, match="of volume v"):
        choose([taken, large], 1, 8, STRONG)
    with pytest.raises(Exhausted, match="given by node1"):  # it may be as large as is asked for
        choose([large, Region("other", None, is_coherent=True, holder="given by node1")], 10, 0, STRONG)
    with pytest.raises(Unsupported, match="coherent: true"):
        choose([Region("loose", 4, is_coherent=False)], 1, 0, STRONG)


def test_two_volumes_never_have_one_region_also_if_both_were_promised_it(world: World) -> None:
    first, pool = world.record(name="first")
    second, _ = world.record(name="second")
    assert first.size == second.size == 4 * MiB
    engine = world.engine("node0")
    made = engine.prepare(first, pool)
    assert made.lease == Lease("small", 4 * MiB)
    with pytest.raises(Exhausted, match=first.id):
        engine.prepare(second, pool)
    assert [volume.id for volume in pool.volumes.all()] == [first.id], "whoever got none has left nothing"
    assert engine.prepare(first, pool) == made, "a call that was slower gets what the other made"
    assert engine.available(pool, STRONG) == 8 * MiB
    world.create(name="second", size=5 * MiB)
    with pytest.raises(Exhausted):
        world.create(name="third")
    assert engine.available(pool, STRONG) == 0
    with pytest.raises(OutOfRange):
        world.create(name="third", size=9 * MiB)
    world.delete(made)
    assert world.create(name="third").lease == Lease("small", 4 * MiB)


def test_only_its_owner_gives_a_region_and_the_others_say_whose_it_is(world: World) -> None:
    engine = world.engine("node1")
    assert engine.available(world.pools["node1"], STRONG) == 0
    with pytest.raises(Exhausted, match="given by node node0"):
        world.create("node1")


def test_a_record_or_a_pool_that_cannot_be_read_is_no_proof_that_memory_is_free(world: World) -> None:
    volume = world.create()
    record = world.pools["node0"].volumes.home / volume.id / "volume.json"
    record.write_text("{")
    with pytest.raises(HostFault):
        world.create(name="other")
    record.parent.parent.rename(world.folder / "elsewhere")
    with pytest.raises(HostFault):
        world.create(name="other")


def test_a_device_that_is_missing_or_used_as_main_memory_is_not_given_and_said_to_be(world: World) -> None:
    for device in ("dax0.0", "dax1.0"):
        driver = world.root("node0") / "sys/bus/dax/devices" / device / "driver"
        driver.unlink()
        driver.symlink_to(driver.parents[2] / "drivers/kmem")
    with pytest.raises(HostFault, match="kmem"):
        look(world.root("node0") / "sys", "dax0.0")
    with pytest.raises(Exhausted, match="kmem"):
        world.create()
    with pytest.raises(NotFound, match=r"dax9\.0"):
        look(world.root("node0") / "sys", "dax9.0")


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


def test_filling_with_zeroes_stops_in_time_goes_on_where_it_stopped_and_nobody_gets_it_before(
    world: World, tmp_path: Path
) -> None:
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


def test_a_driver_killed_at_any_line_gives_nobody_what_another_left(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.csi_ub.kill_memory", str(tmp_path), os.environ.get("UB_KILL_EVERY", "13")]
    done = subprocess.run(command, cwd=REPO, env=environment(), capture_output=True, text=True, timeout=300)
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


# Promises


def test_without_coherent_memory_strong_is_refused_and_eventual_needs_a_way_to_empty_caches(world: World) -> None:
    world.shared = tuple(replace(region, coherent=False) for region in world.shared)
    assert world.engine("node0").available(world.pools["node0"], STRONG) == 0
    with pytest.raises(Unsupported, match="coherent: true"):
        world.create()
    with pytest.raises(Unsupported, match="libpmem"):
        caches.check("libpmem-that-nobody-has.so.1")
    try:
        caches.check()
    except Unsupported:
        with pytest.raises(Unsupported, match="caches"):
            world.create(consistency=EVENTUAL)
    else:
        volume = world.create(consistency=EVENTUAL)
        assert dax.is_clean(world.memory("small"))
        world.stage(volume, "node1")
        world.engine("node1").detach(world.reach(volume, "node1"), "node1")
        assert world.pools["node0"].users(volume.id) == ()


def test_the_terms_of_eventual_memory_say_how_to_publish_and_to_refresh(world: World) -> None:
    volume = world.create(consistency=EVENTUAL)
    told = manifest(world.stage(volume, "node1"))
    assert told["consistency"] == "eventual"
    for word in ("publish", "refresh", "CLFLUSHOPT", "DC CIVAC", "msync"):
        assert word in str(told["rule"])


def test_a_quota_counts_what_all_owners_gave_and_is_not_guessed_where_one_is_silent(world: World) -> None:
    world.shared = (world.shared[0], replace(world.shared[1], owner="node1"))
    world.quotas = {"team": 8 * MiB}
    world.engine("node0")
    world.create("node1", "big", namespace="other")
    with pytest.raises(Exhausted, match="given by node node1"):
        world.create("node0", "more", size=8 * MiB, namespace="team")
    world.delete(next(world.pools["node1"].volumes.all()))
    mine = world.create("node1", "big", namespace="team")
    with pytest.raises(Exhausted, match="quota"):
        world.create("node0", "small", namespace="team")
    world.wire.silent.add("node1")
    with pytest.raises(Unreachable):
        world.create("node0", "small", namespace="team")
    assert world.create("node0", "small", namespace="unbounded").lease
    world.wire.silent.clear()
    world.delete(mine)
    world.delete(next(world.pools["node0"].volumes.all()))
    volume, pool = world.record("node0", "small", namespace="team")
    world.quotas["team"] = MiB  # as if another owner had given some at the same time
    with pytest.raises(Exhausted, match="quota"):
        world.engine("node0").prepare(volume, pool)
    assert list(pool.volumes.all()) == []


def test_type_memory_takes_the_engine_that_works_here_or_says_what_each_lacks(world: World, tmp_path: Path) -> None:
    engine = world.engine("node0")
    shm = ShmEngine(tmp_path, tmp_path, {}, Ubse(tmp_path / "none"))
    known = {each.name: each for each in (shm, engine)}
    for consistency in (STRONG, EVENTUAL):
        assert Engines(known, has_peers=True).choose("", consistency, is_memory=True) is engine
    assert Engines(known).choose("dax", STRONG, is_memory=True) is engine
    with pytest.raises(InvalidRequest, match="not for consistency"):
        Engines(known).choose("dax", STRONG)
    none = Engines({**known, engine.name: replace(engine, shared=())})
    with pytest.raises(Unsupported, match=r"no shared UB memory on this node.*shares no DAX device"):
        none.choose("", STRONG, is_memory=True)


@pytest.mark.parametrize(
    ("wrong", "naming"),
    [
        ({"name": "A"}, "DNS label"),
        ({"owner": "node9"}, "node9"),
        ({"devices": {"node0": "pmem0"}}, "pmem0"),
        ({"devices": {"node0": "../dax0.0"}}, "dax0.0"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_region_that_cannot_be_is_refused_by_name(wrong: dict[str, object], naming: str) -> None:
    good = {"name": "cxl-a", "owner": "node0", "devices": {"node0": "dax0.0", "node1": "dax1.0"}}
    assert convert({"dax": [good]}, Config, where="csi.yaml").dax[0].coherent is False
    with pytest.raises(InvalidRequest, match=naming):
        convert({"dax": [{**good, **wrong}]}, Config, where="csi.yaml")
    with pytest.raises(InvalidRequest, match="cxl-a"):
        convert({"dax": [good, {**good, "devices": {"node0": "dax9.0"}}]}, Config, where="csi.yaml")
    with pytest.raises(InvalidRequest, match=r"dax0\.0 of node node0"):
        convert({"dax": [good, {**good, "name": "b", "devices": {"node0": "dax0.0"}}]}, Config, where="csi.yaml")


# The driver


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Driver]]:
    names = ("node0", "node1")
    memory = dax.memory(tmp_path / "memory", 4 * MiB)
    config: dict[str, object] = {
        "peers": [{"node": name, "address": f"127.0.0.{at}"} for at, name in enumerate(names, 1)],
        "peer_port": 24201,
        "dax": [
            {"name": "cxl-a", "owner": "node0", "coherent": True, "devices": {"node0": "dax0.0", "node1": "dax1.0"}}
        ],
    }
    for number, name in enumerate(names):
        dax.device(tmp_path / name, f"dax{number}.0", memory)
    drivers = [Driver.start(tmp_path, name, config=config) for name in names]
    yield drivers
    for driver in drivers:
        driver.stop()
        unmount_below(driver.kubelet)


@pytest.mark.kernel
def test_nodes_share_a_device_and_give_it_back_in_order(nodes: list[Driver], tmp_path: Path) -> None:
    parameters = {"type": "memory"}
    capacity = csi.GetCapacityRequest(parameters=parameters)
    assert [node.controller.GetCapacity(capacity).maximum_volume_size.value for node in nodes] == [4 * MiB, 0]
    with refused(Code.RESOURCE_EXHAUSTED, naming="node0"):
        nodes[1].create(parameters=parameters)
    volume = nodes[0].create("shared", MiB, parameters=parameters)
    assert volume.capacity_bytes == 4 * MiB
    assert [dict(each.segments) for each in volume.accessible_topology] == [
        {"topology.unifiedbus.com/node": node.node} for node in nodes
    ]
    assert nodes[0].create("shared", MiB, parameters=parameters) == volume
    with refused(Code.OUT_OF_RANGE, naming="cxl-a"):
        nodes[0].create("larger", 8 * MiB, parameters=parameters)
    with refused(Code.RESOURCE_EXHAUSTED, naming=volume.volume_id):
        nodes[0].create("another", MiB, parameters=parameters)
    for node in nodes:
        node.stage(volume)
    pods = [node.publish(volume) for node in nodes]
    assert [each["path"] for pod in pods for each in manifest(pod)["devices"]] == ["dax0.0", "dax1.0"]  # type: ignore[attr-defined]
    with (pods[0] / "dax0.0").open("r+b", buffering=0) as here, mmap.mmap(here.fileno(), 4 * MiB) as mapped:
        assert not any(mapped[:])
        mapped[:5] = b"hello"
        assert (pods[1] / "dax1.0").read_bytes()[:5] == b"hello"
        with refused(Code.FAILED_PRECONDITION, naming="in use"):
            nodes[0].unpublish(volume)
    held = (tmp_path / "memory").open("rb")  # as a program does that was given the descriptor
    nodes[1].unpublish(volume)
    with refused(Code.FAILED_PRECONDITION, naming=str(os.getpid())):
        nodes[1].unstage(volume)
    held.close()
    nodes[1].unstage(volume)
    with refused(Code.FAILED_PRECONDITION, naming="node0"):
        nodes[0].delete(volume.volume_id)
    nodes[1].stage(volume)
    nodes[0].unpublish(volume)
    nodes[0].unstage(volume)
    with refused(Code.FAILED_PRECONDITION, naming="node1"):
        nodes[0].delete(volume.volume_id)
    nodes[1].kill()
    nodes[1].restart()
    nodes[1].unstage(volume)
    nodes[0].delete(volume.volume_id)
    assert not any(list((node.root / "run/ub-node/memory").iterdir()) for node in nodes)
    assert nodes[0].create("next", parameters=parameters).capacity_bytes == 4 * MiB
    assert dax.is_clean(tmp_path / "memory")


@pytest.mark.kernel
def test_what_a_shared_device_cannot_do_is_refused_and_said(nodes: list[Driver]) -> None:
    volume = nodes[0].create(parameters={"type": "memory", "engine": "dax"})
    for code, wrong in (
        (Code.INVALID_ARGUMENT, {"engine": "bind"}),
        (Code.INVALID_ARGUMENT, {"replicas": "3"}),
        (Code.FAILED_PRECONDITION, {"engine": "ub-shm"}),
    ):
        with refused(code, naming=next(iter(wrong.values())) if code is Code.INVALID_ARGUMENT else "UB memory"):
            nodes[0].create("other", parameters={"type": "memory", **wrong})
    with refused(Code.INVALID_ARGUMENT, naming="dax"):
        nodes[0].create("files", parameters={"engine": "dax"})
    with refused(Code.FAILED_PRECONDITION, naming="snapshots"):
        nodes[0].controller.CreateSnapshot(csi.CreateSnapshotRequest(name="s", source_volume_id=volume.volume_id))
    with refused(Code.FAILED_PRECONDITION, naming="grow"):
        sizes = csi.CapacityRange(required_bytes=1 << 30)
        nodes[0].controller.ControllerExpandVolume(
            csi.ControllerExpandVolumeRequest(volume_id=volume.volume_id, capacity_range=sizes)
        )
    clone = csi.CreateVolumeRequest(name="c", volume_capabilities=[capability()], parameters={"type": "memory"})
    clone.volume_content_source.volume.volume_id = nodes[0].create("files", parameters={"engine": "bind"}).volume_id
    with refused(Code.FAILED_PRECONDITION, naming="starts empty"):
        nodes[0].controller.CreateVolume(clone)

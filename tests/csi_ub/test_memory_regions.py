"""Which shared memory a volume gets, on what terms, and what is refused: the engine of DAX devices by itself."""

from dataclasses import replace
from pathlib import Path

import pytest

from csi_ub.config import Config
from csi_ub.engines import Engines
from csi_ub.engines.shm import ShmEngine
from csi_ub.memory.dax import look
from csi_ub.memory.regions import Region, choose
from csi_ub.model import Consistency, Lease
from csi_ub.reasons import OutOfRange, Unreachable
from tests.csi_ub import dax
from tests.csi_ub.dax import World, manifest
from ubhost.config import convert
from ubhost.errors import Exhausted, HostFault, InvalidRequest, NotFound, Unsupported
from ubhost.kernel import caches
from ubhost.ubse.client import Ubse

MiB = 1 << 20
STRONG, EVENTUAL = Consistency.STRONG, Consistency.EVENTUAL


@pytest.fixture
def world(tmp_path: Path) -> World:
    return dax.build(tmp_path)


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

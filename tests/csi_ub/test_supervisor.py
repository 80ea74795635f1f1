from dataclasses import replace
from pathlib import Path

import pytest

from csi_ub import supervisor
from csi_ub.config import PoolType
from csi_ub.engines import Engines
from csi_ub.engines.bind import BindEngine
from csi_ub.model import Spec, Volume
from csi_ub.pool import Pool
from csi_ub.pools import space
from csi_ub.volumes import Volumes
from ubhost.errors import HostFault

FAULTS = [HostFault("the disk is gone"), OSError("the disk is gone"), KeyError("a bug of ours")]
METHODS = ("resume", "look_after", "tidy")


class Engine(BindEngine):
    """Notes what it is asked for; its method ``bad`` raises ``fault``."""

    def __init__(self, name: str, told: list[str], bad: str = "", fault: Exception | None = None) -> None:
        self.name = name
        self._told, self._bad, self._fault = told, bad, fault

    def _tell(self, what: str) -> None:
        self._told.append(f"{self.name} {what}")
        if what == self._bad and self._fault:
            raise self._fault

    def resume(self) -> None:
        self._tell("resume")

    def look_after(self, volume: Volume, pool: Pool) -> None:
        self._tell("look_after")

    def tidy(self, find: object) -> None:
        self._tell("tidy")


def node(folder: Path, *engines: Engine) -> Volumes:
    """Return a node with one volume of each engine."""
    pools = []
    for engine in engines:
        (folder / engine.name).mkdir()
        pools.append(Pool(engine.name, folder / engine.name, space(PoolType.DIR)))
        pools[-1].open()
        pools[-1].create(Volume("", "a", "node0", engine.name, Spec(), engine=engine.name))
    return Volumes("node0", tuple(pools), Engines({engine.name: engine for engine in engines}))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_an_engine_in_trouble_keeps_neither_the_driver_from_starting_nor_the_others_from_work(
    tmp_path: Path, method: str, fault: Exception
) -> None:
    told: list[str] = []
    volumes = node(tmp_path, Engine("bad", told, method, fault), Engine("good", told))
    supervisor.serve(volumes)
    supervisor.look_after(volumes)
    rounds = [*(f"good {method}" for method in METHODS), "good look_after", "good tidy"]
    assert [each for each in told if each.startswith("good")] == rounds
    assert told.count(f"bad {method}") == (1 if method == "resume" else 2)  # and it is tried again


def test_a_pool_that_has_gone_leaves_the_volumes_of_the_others_looked_after(tmp_path: Path) -> None:
    told: list[str] = []
    volumes = node(tmp_path, Engine("bad", told), Engine("good", told))
    (tmp_path / "bad" / "volumes").rename(tmp_path / "away")
    supervisor.serve(volumes)
    assert "good look_after" in told
    assert "bad look_after" not in told


class Begun(Engine):
    """An engine whose volumes are ready once their record has a port, as that of GlusterFS is."""

    def is_prepared(self, volume: Volume) -> bool:
        return bool(volume.port)

    def prepare(self, volume: Volume, pool: Pool) -> Volume:
        self._tell("prepare")
        return pool.volumes.update(volume.id, lambda it: replace(it, port=24100))


def test_what_a_driver_was_killed_before_it_served_is_served_by_the_next_one(tmp_path: Path) -> None:
    told: list[str] = []
    volumes = node(tmp_path, Begun("begun", told))
    supervisor.look_after(volumes)
    supervisor.look_after(volumes)
    assert told == ["begun prepare", "begun tidy", "begun look_after", "begun tidy"]
    (volume,) = volumes.pools[0].volumes.all()
    assert volume.port == 24100

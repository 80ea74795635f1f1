"""The short form of ``make consistency``: what must hold however slow the machine is. The long form kills and cuts.

Work and controls are counted in rounds, not in seconds.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.csi_ub.consistency.__main__ import bench, control
from tests.csi_ub.consistency.suites import Bench, Verdict, append, lock, race, register, turns

SUITES: dict[str, Callable[[Bench], Verdict]] = {
    "register, opened each time": lambda it: register(it, "register-open", "register-open"),
    "register, held open": lambda it: register(it, "register-held", "register-held"),
    "append log": lambda it: append(it, "append"),
    "one winner": race,
    "locks": lock,
    "turns": lambda it: turns(it, "turns", it.paths[1:]),
}
_ROUNDS = 50


@pytest.mark.kernel
@pytest.mark.skipif(not shutil.which("glusterfsd"), reason="GlusterFS is not installed")
def test_a_strong_volume_is_linearizable_on_three_nodes_and_one_with_caches_is_caught(tmp_path: Path) -> None:
    keep = tmp_path / "histories"
    keep.mkdir()
    with bench(tmp_path, 1, keep, 1) as three:
        three = replace(three, rounds=_ROUNDS)
        verdicts = {name: suite(three) for name, suite in SUITES.items()}
        caught = control(three, tmp_path)
    assert {name: each.wrong for name, each in verdicts.items()} == dict.fromkeys(SUITES, 0)
    assert all(each.operations >= _ROUNDS for each in verdicts.values())
    assert len(list(keep.iterdir())) == len(SUITES) - 1  # what goes by turns is told by its verdict
    assert caught.wrong > 0, "the same volume with caches was not found out"


def test_nodes_that_do_not_see_one_another_are_caught(tmp_path: Path) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()
        (place / "control").write_bytes(bytes(8))
    assert turns(Bench([], places, 0, tmp_path, rounds=_ROUNDS), "control", places[1:], control=True).wrong > 0
    assert turns(Bench([], places, 0, tmp_path, rounds=_ROUNDS), "control", places[:1], control=False).wrong == 0

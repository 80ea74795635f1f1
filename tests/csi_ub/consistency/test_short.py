"""The short form of ``make consistency``: what must hold however slow the machine is. The long form kills and cuts."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.csi_ub.consistency.__main__ import Bench, Verdict, append, bench, lock, race, register

SUITES: dict[str, Callable[[Bench], Verdict]] = {
    "register, opened each time": lambda it: register(it, "register-open", "register-open"),
    "register, held open": lambda it: register(it, "register-held", "register-held"),
    "append log": lambda it: append(it, "append"),
    "one winner": race,
    "locks": lock,
}


@pytest.mark.kernel
@pytest.mark.skipif(not shutil.which("glusterfsd"), reason="GlusterFS is not installed")
def test_a_strong_volume_is_linearizable_on_three_nodes(tmp_path: Path) -> None:
    keep = tmp_path / "histories"
    keep.mkdir()
    with bench(tmp_path, 1, keep, 1) as three:
        verdicts = {name: suite(three) for name, suite in SUITES.items()}
    assert {name: each.wrong for name, each in verdicts.items()} == dict.fromkeys(SUITES, 0)
    assert all(each.operations for each in verdicts.values())
    assert len(list(keep.iterdir())) == len(SUITES)


def test_nodes_that_do_not_see_one_another_are_caught(tmp_path: Path) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()
        (place / "control").write_bytes(bytes(8))
    apart = Bench([], places, 1, tmp_path)
    caught = register(apart, "register-open", "control", [place / "control" for place in places], control=True)
    assert caught.wrong > 0

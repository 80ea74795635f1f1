"""Conflict copies are found by their names, listed and counted."""

from pathlib import Path

import pytest

from csi_ub.config import Config
from csi_ub.connect import connect
from csi_ub.metrics import Exposition
from csi_ub.syncthing import conflicts
from csi_ub.syncthing.conflicts import Conflict, parse
from ubhost.roots import Roots


@pytest.mark.parametrize(
    ("name", "original"),
    [
        ("report.sync-conflict-20261129-201530-ABCDEFG.txt", "report.txt"),
        ("deep/er/report.sync-conflict-20261129-201530-ABCDEFG", "deep/er/report"),
        ("a.tar.sync-conflict-20261129-201530-ABCDEFG.gz", "a.tar.gz"),
    ],
)
def test_a_name_tells_the_file_the_time_and_the_writer(name: str, original: str) -> None:
    assert parse(name) == Conflict(original, name, "2026-11-29 20:15:30", "ABCDEFG")


@pytest.mark.parametrize("name", ["report.txt", "sync-conflict", "a.sync-conflict-2026-1-ABCDEFG.txt"])
def test_other_names_are_no_conflicts(name: str) -> None:
    assert parse(name) is None


def test_conflicts_are_counted_for_the_metric_without_touching_the_volume_again(tmp_path: Path) -> None:
    roots = Roots(tmp_path)
    share = roots.state / "replicas" / "ub-copy"
    (share / "data/deep").mkdir(parents=True)
    assert conflicts.counted(share) is None
    (share / "data/deep/a.sync-conflict-20261129-201530-ABCDEFG.txt").touch()
    conflicts.count(share)
    (share / "data/deep/a.sync-conflict-20261129-201531-ABCDEFG.txt").touch()
    assert conflicts.counted(share) == 1
    volumes = connect("node0", Config(), roots)
    volumes.pools[0].open()
    exposition = Exposition(volumes, share.parent)
    samples = [sample for metric in exposition.collect() for sample in metric.samples]
    assert [(s.labels, s.value) for s in samples if s.name == "csi_ub_conflicts"] == [({"volume": "ub-copy"}, 1)]

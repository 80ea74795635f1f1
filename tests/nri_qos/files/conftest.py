"""A pod and a container in a tree of plain files, and a writer with its journal."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nri_qos.files import Hierarchy
from nri_qos.journal import Journal
from nri_qos.writer import Writer
from tests.nri_qos.cgroups import Tree

POD, APP = "kubepods/pod1", "kubepods/pod1/app"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    made = Tree(tmp_path)
    for folder in ("kubepods", POD, APP):
        made.add(folder)
    return made


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    kept = Journal(tmp_path / "run/nri-qos.journal")
    yield kept
    with suppress(OSError):
        kept.close()


@pytest.fixture
def writer(tree: Tree, journal: Journal) -> Writer:
    return Writer(Hierarchy(tree.root), journal)

"""Putting back what cgroup files said."""

import errno
import os
from pathlib import Path

import pytest

from nri_qos.files import Hierarchy
from nri_qos.journal import Journal
from nri_qos.restore import from_file, restore
from nri_qos.settings import Setting
from nri_qos.writer import Writer
from tests.nri_qos.cgroups import Tree
from tests.nri_qos.files.conftest import APP, POD
from ubhost.errors import HostFault


def test_what_was_written_is_put_back(tree: Tree, writer: Writer, journal: Journal) -> None:
    before = tree.everything()
    writer.apply(
        [Setting(APP, "cpuset.cpus", "2-3"), Setting(POD, "cpu.max", "1000 50000"), Setting(POD, "cpu.weight", "1")]
    )
    writer.apply([Setting(APP, "cpuset.cpus", "2"), Setting(POD, "cpu.max", "2000 50000")])
    assert tree.read(APP, "cpuset.cpus") == "2"
    assert restore(Hierarchy(tree.root), journal) == {
        "restored": 3,
        "widened": 0,
        "changed by others": 0,
        "gone": 0,
        "failed": 0,
    }
    assert tree.everything() == before


def test_what_somebody_changed_since_is_left_alone(tree: Tree, writer: Writer, journal: Journal) -> None:
    writer.apply([Setting(POD, "cpu.weight", "1"), Setting(POD, "cpu.max", "1000 50000")])
    tree.write(POD, "cpu.weight", "77")
    assert restore(Hierarchy(tree.root), journal) == {
        "restored": 1,
        "widened": 0,
        "changed by others": 1,
        "gone": 0,
        "failed": 0,
    }
    assert tree.read(POD, "cpu.weight") == "77"


def test_restore_without_a_hierarchy_forgets_nothing(tree: Tree, writer: Writer, tmp_path: Path) -> None:
    before = tree.everything()
    writer.apply([Setting(POD, "cpu.weight", "1")])
    with pytest.raises(HostFault, match="no cgroup hierarchy"):
        from_file(tmp_path / "missing", tmp_path / "run/nri-qos.journal")
    from_file(tree.root, tmp_path / "run/nri-qos.journal")
    assert tree.everything() == before


class BusyCpusets(Hierarchy):
    """Files of a kernel that empties no cpuset in use; giving the controller back empties them all."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree.root)
        self.tree = tree
        self.is_movable = True

    def write(self, cgroup: str, file: str, value: str) -> None:
        if file.startswith("cpuset.") and not value:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if file == "cgroup.subtree_control":
            if not self.is_movable:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            for child in self.children(cgroup):
                self.tree.write(child, "cpuset.cpus", "")
                self.tree.write(child, "cpuset.mems", "")
            return
        super().write(cgroup, file, value)


@pytest.fixture
def busy(tree: Tree) -> BusyCpusets:
    tree.write(POD, "cpuset.cpus.effective", "0-7")
    tree.write(POD, "cpuset.mems.effective", "0-2")
    return BusyCpusets(tree)


def test_a_cpuset_in_use_is_emptied_by_giving_the_controller_back(
    tree: Tree, busy: BusyCpusets, journal: Journal
) -> None:
    before = tree.everything()
    Writer(busy, journal).apply([Setting(APP, "cpuset.cpus", "2"), Setting(APP, "cpuset.mems", "0")])
    assert restore(busy, journal)["restored"] == 2
    assert tree.everything() == before
    assert not journal.entries


@pytest.mark.parametrize("is_movable", [False, True])
def test_a_cpuset_that_cannot_be_emptied_gets_what_its_parent_has(
    is_movable: bool, tree: Tree, busy: BusyCpusets, journal: Journal
) -> None:
    other = f"{POD}/other"
    tree.add(other, cpuset__cpus="5" if is_movable else "")
    busy.is_movable = is_movable
    Writer(busy, journal).apply([Setting(APP, "cpuset.cpus", "2")])
    assert restore(busy, journal)["widened"] == 1
    assert tree.read(APP, "cpuset.cpus") == "0-7"
    assert tree.read(other, "cpuset.cpus") == ("5" if is_movable else "")


def test_while_the_loop_runs_a_cpuset_in_use_is_widened_once(tree: Tree, busy: BusyCpusets, journal: Journal) -> None:
    writer = Writer(busy, journal)
    writer.apply([Setting(APP, "cpuset.cpus", "2")])
    for _ in range(5):
        writer.apply([Setting(APP, "cpuset.cpus", None)])
    assert tree.read(APP, "cpuset.cpus") == "0-7"
    assert writer.counts["writes", "cpuset.cpus"] == 2
    assert journal.entries[APP, "cpuset.cpus"].original == ""  # restore still can empty it
    assert restore(busy, journal)["restored"] == 1
    assert tree.read(APP, "cpuset.cpus") == ""


def test_a_restore_that_was_killed_with_the_controller_taken_gives_it_back(
    tree: Tree, busy: BusyCpusets, journal: Journal
) -> None:
    given: list[tuple[str, str, str]] = []
    journal.intend([((POD, "cgroup.subtree_control"), "+cpuset", "-cpuset")])
    busy.write = lambda *arguments: given.append(arguments)  # type: ignore[method-assign]
    restore(busy, journal)
    assert given == [(POD, "cgroup.subtree_control", "+cpuset")]
    assert not journal.entries

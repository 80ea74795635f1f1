"""Writing cgroup files, remembering what they said, and putting it back."""

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_qos.files import Hierarchy
from nri_qos.journal import Journal
from nri_qos.restore import from_file, restore
from nri_qos.settings import Setting, cpu_max, in_order, is_same, memory
from nri_qos.writer import Writer
from tests.nri_qos.cgroups import Tree
from ubhost.errors import HostFault

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


def test_a_setting_without_value_puts_back_one_file(tree: Tree, writer: Writer, journal: Journal) -> None:
    writer.apply([Setting(POD, "cpu.max", "1000 50000")])
    writer.apply([Setting(POD, "cpu.max", None)])
    assert tree.read(POD, "cpu.max") == "max 100000"
    writer.apply([Setting(POD, "cpu.max", None)])
    assert not journal.entries


def test_what_the_runtime_wrote_for_us_is_put_back_to_what_was_asked(
    tree: Tree, writer: Writer, journal: Journal
) -> None:
    tree.write(APP, "cpuset.cpus", "6-7")
    writer.apply([Setting(APP, "cpuset.cpus", "6-7", original="")])
    restore(Hierarchy(tree.root), journal)
    assert tree.read(APP, "cpuset.cpus") == ""


def test_nothing_is_written_that_is_the_same_already(tree: Tree, writer: Writer) -> None:
    tree.write(APP, "cpuset.cpus", "0,1,2")
    stamp = (tree.root / APP / "cpuset.cpus").stat().st_mtime_ns
    writer.apply([Setting(APP, "cpuset.cpus", "0-2"), Setting(POD, "cpu.max", "max"), Setting(POD, "io.weight", "100")])
    assert not writer.counts
    assert (tree.root / APP / "cpuset.cpus").stat().st_mtime_ns == stamp


def test_a_cgroup_that_vanished_is_no_error(tree: Tree, writer: Writer, journal: Journal) -> None:
    """(D12)"""
    report = writer.apply([Setting("kubepods/pod9/x", "cpuset.cpus", "1"), Setting(POD, "cpu.weight", "1")])
    assert report.gone == {"kubepods/pod9/x"}
    assert tree.read(POD, "cpu.weight") == "1"
    for file in (tree.root / POD).iterdir():
        if file.is_dir():
            for inner in file.iterdir():
                inner.unlink()
            file.rmdir()
        else:
            file.unlink()
    (tree.root / POD).rmdir()
    writer.prune()
    assert not journal.entries
    journal.adopt([((POD, "cpu.weight"), "100", "1")])
    assert restore(Hierarchy(tree.root), journal)["gone"] == 1
    assert not any("errors" in key[0] for key in writer.counts)


def test_a_file_that_the_kernel_lacks_is_a_capability_and_no_error(tree: Tree, writer: Writer) -> None:
    writer.apply([Setting(POD, "cpu.uclamp.max", "50"), Setting(POD, "cpu.weight", "1")])
    assert writer.capabilities == {"cpu.uclamp.max": False, "cpu.weight": True}
    assert not any("errors" in key[0] for key in writer.counts)


def test_a_writer_who_insists_is_given_way_to(tree: Tree, writer: Writer) -> None:
    """(E20) Each round costs one write; the pauses grow, and it is counted."""
    writes = []
    for period in range(64):
        before = writer.counts["writes", "cpu.weight"]
        writer.apply([Setting(POD, "cpu.weight", "1")])
        writes.extend([period] * (writer.counts["writes", "cpu.weight"] - before))
        tree.write(POD, "cpu.weight", "100")
    assert 4 <= len(writes) <= 8
    assert writes[-1] - writes[-2] > writes[2] - writes[1]
    assert writer.counts["drift", "cpu.weight"] == len(writes) - 1


def test_drift_that_happens_once_is_repaired_at_once(tree: Tree, writer: Writer) -> None:
    for value in ("100", "100"):
        tree.write(POD, "cpu.weight", value)
        writer.apply([Setting(POD, "cpu.weight", "1")])
        assert tree.read(POD, "cpu.weight") == "1"
        for _ in range(3):
            writer.apply([Setting(POD, "cpu.weight", "1")])


def test_an_effective_set_that_differs_is_an_alarm(
    tree: Tree, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    """(E3)"""
    tree.write(APP, "cpuset.cpus.effective", "0-3")
    writer.apply([Setting(APP, "cpuset.cpus", "6-7")])
    assert writer.counts["ineffective", "cpuset.cpus"] == 1
    assert "did not become what was written" in caplog.text


def test_protection_that_a_parent_does_not_share_is_an_alarm(tree: Tree, writer: Writer) -> None:
    """(D10)"""
    writer.apply([Setting(POD, "memory.min", "4096")])
    assert writer.counts["ineffective", "memory.min"] == 1
    tree.write("kubepods", "memory.low", "max")
    writer.apply([Setting(POD, "memory.low", "4096")])
    assert not writer.counts["ineffective", "memory.low"]


def test_a_file_that_cannot_be_read_is_complained_about_once(
    tree: Tree, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    """(D13)"""
    path = tree.root / POD / "cpu.weight"
    path.unlink()
    path.mkdir()
    for _ in range(40):
        writer.apply([Setting(POD, "cpu.weight", "1")])
    assert caplog.text.count("cannot be written") == 1
    assert writer.counts["write_errors", "cpu.weight", "EISDIR"] < 10


def test_a_link_is_not_followed(tree: Tree, writer: Writer, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine\n")
    path = tree.root / POD / "cpu.weight"
    path.unlink()
    path.symlink_to(precious)
    writer.apply([Setting(POD, "cpu.weight", "1")])
    assert precious.read_text() == "mine\n"


def test_without_a_journal_nothing_is_written(tree: Tree) -> None:
    before = tree.everything()
    assert Writer(Hierarchy(tree.root), None).apply([Setting(POD, "cpu.weight", "1")]).written == 1
    assert tree.everything() == before


def test_a_journal_that_cannot_be_kept_means_that_nothing_is_written(
    tree: Tree, writer: Writer, journal: Journal
) -> None:
    """(B9)"""
    before = tree.everything()
    journal.close()
    with pytest.raises(HostFault, match="cannot write"):
        writer.apply([Setting(POD, "cpu.weight", "1")])
    assert tree.everything() == before


def test_a_journal_torn_at_any_byte_is_read_as_far_as_it_goes(tree: Tree, writer: Writer, tmp_path: Path) -> None:
    """(B9)"""
    before = tree.everything()
    settings = [
        Setting(POD, "cpu.weight", "1"),
        Setting(APP, "cpuset.cpus", "1"),
        Setting(POD, "cpu.max", "2000 50000"),
    ]
    writer.apply(settings)
    path = tmp_path / "run/nri-qos.journal"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        outcome = from_file(tree.root, path)
        assert outcome["failed"] == outcome["changed by others"] == 0
        assert outcome["restored"] == max(whole[: length + 1].count(b"}\n") - 1, whole[:length].count(b"}") - 1, 0)
        for setting in settings:
            tree.write(setting.cgroup, setting.file, setting.value or "")
    path.write_bytes(whole)
    from_file(tree.root, path)
    assert tree.everything() == before
    assert not path.exists()


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("point", range(0, 24, 2))
def test_a_kill_at_any_step_loses_no_original(
    point: int, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call to the kernel that changes something is a step."""
    before = tree.everything()
    dice = random.Random(point)
    left = point

    def killing(call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*arguments: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return call(*arguments)

        return wrapped

    path = tmp_path / "run/nri-qos.journal"
    writer = Writer(Hierarchy(tree.root), Journal(path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", killing(os.write))
        patch.setattr(os, "fsync", killing(os.fsync))
        try:
            for _ in range(8):
                writer.apply(
                    [
                        Setting(POD, "cpu.max", cpu_max(dice.uniform(0.1, 4))),
                        Setting(APP, "cpuset.cpus", str(dice.randrange(4))),
                        Setting(POD, "cpu.weight", "1"),
                    ]
                )
        except Killed:
            pass
        else:
            pytest.fail("there are fewer steps than points")
    outcome = from_file(tree.root, path)
    assert outcome["failed"] == outcome["changed by others"] == 0
    assert tree.everything() == before


def test_a_journal_does_not_grow_for_ever(tree: Tree, writer: Writer, tmp_path: Path) -> None:
    for number in range(2500):
        writer.apply([Setting(POD, "cpu.max", f"{1000 + number} 50000")])
    assert (tmp_path / "run/nri-qos.journal").stat().st_size < 300_000


def test_a_write_that_fails_half_way_is_reported_and_the_others_are_made(
    tree: Tree, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write

    def refuse(fd: int, data: bytes) -> int:
        if data.startswith(b"1 50000"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(fd, data)

    monkeypatch.setattr(os, "write", refuse)
    writer.apply([Setting(POD, "cpu.max", "1 50000"), Setting(POD, "cpu.weight", "1")])
    assert writer.counts["write_errors", "cpu.max", "EINVAL"] == 1
    assert tree.read(POD, "cpu.weight") == "1"


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


def order(*settings: Setting, now: dict[tuple[str, str], str]) -> list[tuple[str, str]]:
    return [setting.place for setting in in_order(settings, now)]


def test_a_quota_is_lowered_after_its_burst_and_raised_before_it() -> None:
    now = {(POD, "cpu.max"): "40000 100000", (POD, "cpu.max.burst"): "20000"}
    lower = Setting(POD, "cpu.max", "10000 100000"), Setting(POD, "cpu.max.burst", "0")
    assert order(*lower, now=now) == [(POD, "cpu.max.burst"), (POD, "cpu.max")]
    higher = Setting(POD, "cpu.max.burst", "50000"), Setting(POD, "cpu.max", "90000 100000")
    assert order(*higher, now=now) == [(POD, "cpu.max"), (POD, "cpu.max.burst")]


def test_idle_is_lifted_before_the_weight_changes() -> None:
    settings = Setting(POD, "cpu.weight", "50"), Setting(POD, "cpu.idle", "0")
    assert order(*settings, now={(POD, "cpu.idle"): "1"}) == [(POD, "cpu.idle"), (POD, "cpu.weight")]
    settings = Setting(POD, "cpu.idle", "1"), Setting(POD, "cpu.weight", "50")
    assert order(*settings, now={(POD, "cpu.idle"): "0"}) == [(POD, "cpu.weight"), (POD, "cpu.idle")]


def test_parents_are_widened_first_and_narrowed_last() -> None:
    """(D5)"""
    places = (POD, "cpuset.cpus"), (APP, "cpuset.cpus")
    now = dict.fromkeys(places, "2-3")
    wider = Setting(APP, "cpuset.cpus", "0-3"), Setting(POD, "cpuset.cpus", "0-3")
    assert order(*wider, now=now) == list(places)
    narrower = Setting(POD, "cpuset.cpus", "3"), Setting(APP, "cpuset.cpus", "3")
    assert order(*narrower, now=now) == list(reversed(places))


@given(st.floats(0, 1000))
def test_a_quota_is_never_less_than_the_kernel_takes(cpus: float) -> None:
    """(D3)"""
    quota, period = map(int, cpu_max(cpus).split())
    assert quota >= 1000
    assert abs(quota / period - max(cpus, 0.02)) < 1e-4


@given(st.floats(0, 1e15))
def test_memory_is_whole_pages_and_never_none(value: float) -> None:
    """(D9)"""
    pages, rest = divmod(int(memory(value)), 4096)
    assert rest == 0
    assert pages >= 1


@pytest.mark.parametrize(
    ("file", "one", "other", "same"),
    [
        ("cpuset.cpus", "0,1,2", "0-2", True),
        ("cpu.max", "max", "max 100000", True),
        ("cpu.max", "1000 50000", "2000 100000", False),
        ("memory.high", "8192", "8191", False),
        ("memory.high", "max", "max", True),
        ("memory.high", "4097", "4096", True),
        ("io.weight", "50", "default 50", True),
        ("io.weight", "default 50", "default 100\n8:0 50", False),
    ],
)
def test_values_are_compared_as_the_kernel_means_them(file: str, one: str, other: str, same: bool) -> None:
    assert is_same(file, one, other) == same

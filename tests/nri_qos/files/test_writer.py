"""Writing cgroup files: what is written, what is not, and what is an alarm."""

import errno
import os
from pathlib import Path

import pytest

from nri_qos.files import Hierarchy
from nri_qos.journal import Journal
from nri_qos.restore import restore
from nri_qos.settings import Setting, is_same
from nri_qos.writer import Writer
from tests.nri_qos.cgroups import Tree
from tests.nri_qos.files.conftest import APP, POD


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


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EINVAL, errno.EACCES, errno.EROFS, errno.ENOMEM])
@pytest.mark.parametrize(
    "setting",
    [
        Setting(POD, "cpu.weight", "1"),
        Setting(POD, "cpu.max", "2000 50000"),
        Setting(POD, "cpu.max.burst", "1"),
        Setting(POD, "memory.high", str(1 << 30)),
        Setting(APP, "cpuset.cpus", "2"),
        Setting(APP, "cpuset.mems", "0"),
    ],
    ids=lambda setting: setting.file,
)
def test_a_file_that_the_kernel_refuses_is_told_once_tried_again_ever_later_and_stops_no_other(
    setting: Setting,
    number: int,
    tree: Tree,
    writer: Writer,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """(D13)"""
    before, real = tree.everything(), os.write
    refused = (tree.root / setting.cgroup / setting.file).stat().st_ino
    tries: list[int] = []

    def refuse(fd: int, data: bytes) -> int:
        if os.fstat(fd).st_ino == refused:
            tries.append(fd)
            raise OSError(number, os.strerror(number))
        return real(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        for _ in range(100):
            writer.apply([setting, Setting(POD, "pids.max", "9")])
    assert len(tries) == writer.counts["write_errors", setting.file, errno.errorcode[number]] <= 8
    assert not writer.counts["drift", setting.file]
    assert caplog.text.count("cannot be written") == 1
    assert tree.read(POD, "pids.max") == "9"
    for _ in range(200):
        writer.apply([setting])
    assert is_same(setting.file, tree.read(setting.cgroup, setting.file), setting.value or "")
    assert restore(Hierarchy(tree.root), journal)["restored"] == 2
    assert tree.everything() == before


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

"""What the journal keeps, whatever ends the process or tears the file."""

import errno
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from nri_qos import journal as journal_module
from nri_qos.files import Hierarchy
from nri_qos.journal import Journal
from nri_qos.restore import from_file
from nri_qos.settings import Setting, cpu_max
from nri_qos.writer import Writer
from tests.nri_qos.cgroups import Tree
from tests.nri_qos.files.conftest import APP, POD
from ubhost.errors import HostFault


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


def test_a_line_that_a_full_disk_tore_costs_no_other(
    tree: Tree, writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(B9)"""
    before = tree.everything()
    real = os.write

    def write_half(fd: int, data: bytes) -> int:
        if len(data) < 40:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_half)
        with pytest.raises(HostFault, match="No space left"):
            writer.apply([Setting(POD, "cpu.weight", "1")])
    writer.apply([Setting(APP, "cpuset.cpus", "1")])
    assert from_file(tree.root, tmp_path / "run/nri-qos.journal")["restored"] == 1
    assert tree.everything() == before


def test_a_journal_that_cannot_be_made_shorter_goes_on_as_it_is(
    tree: Tree, writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(B9) Above all it does not go on with a descriptor that is somebody else's by now."""
    before = tree.everything()
    monkeypatch.setattr(journal_module, "SPARE_LINES", -1)
    temporary = tmp_path / "run/.nri-qos.journal.tmp"
    temporary.mkdir()
    settings = [Setting(folder, "cpu.weight", "1") for folder in ("kubepods", POD, APP)]
    with pytest.raises(HostFault, match="Is a directory"):
        writer.apply(settings)
    reused = tmp_path / "somebody-else's"
    with reused.open("w"):
        for number in range(2):
            with suppress(HostFault):
                writer.apply([Setting(APP, "cpuset.cpus", str(number))])
    assert reused.read_text() == ""
    temporary.rmdir()
    writer.apply([Setting(APP, "cpuset.cpus", "3")])
    assert from_file(tree.root, tmp_path / "run/nri-qos.journal")["restored"] == 4
    assert tree.everything() == before


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "null",
        "5",
        "[" * 100_000,
        '{"cgroup": 5, "file": "cpu.max", "original": "a", "written": "b", "before": "c"}',
        '{"cgroup": ["a"], "file": "cpu.max", "gone": true}',
        '{"cgroup": "kubepods", "file": "cpu.max", "original": 5, "written": null, "before": []}',
        '{"cgroup": "kubepods", "file": "cpu.max", "written": "max 100000", "before": "max 100000"}',
        "\ufffd\x00",
    ],
)
def test_a_line_that_is_no_record_is_told_and_costs_no_other(
    line: str, tree: Tree, writer: Writer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """(B9)"""
    before = tree.everything()
    writer.apply([Setting(POD, "cpu.weight", "1"), Setting(APP, "cpuset.cpus", "1")])
    path = tmp_path / "run/nri-qos.journal"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], line, lines[-1]]))
    assert from_file(tree.root, tmp_path / "run/nri-qos.journal")["restored"] == 2
    assert tree.everything() == before
    assert "lines of the journal are unreadable" in caplog.text

"""State files: whole or untouched, and honest about damage."""

import os
import signal
from pathlib import Path

import pytest

from ubhost import statefile
from ubhost.errors import HostFault
from ubhost.statefile import Damaged


def test_what_was_written_is_read_back_without_the_version(tmp_path: Path) -> None:
    statefile.write(tmp_path / "a.json", 1, {"owner": "pod-1"})
    assert statefile.read(tmp_path / "a.json", 1) == {"owner": "pod-1"}


def test_a_missing_file_is_none_and_not_an_error(tmp_path: Path) -> None:
    assert statefile.read(tmp_path / "a.json", 1) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"owner": 1}', "\x00" * 64])
def test_a_torn_or_foreign_file_is_reported_as_damaged_with_its_path(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(Damaged, match=r"a\.json"):
        statefile.read(tmp_path / "a.json", 1)


def test_bytes_that_are_not_text_are_reported_as_damaged(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Damaged):
        statefile.read(tmp_path / "a.json", 1)


def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    statefile.write(path, 1, {"owner": "pod-1"})
    with pytest.raises(TypeError):
        statefile.write(path, 1, {"owner": object()})
    assert statefile.read(path, 1) == {"owner": "pod-1"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_into_a_missing_folder_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(HostFault, match=r"missing/a\.json"):
        statefile.write(tmp_path / "missing" / "a.json", 1, {})


def test_state_is_readable_by_root_only(tmp_path: Path) -> None:
    statefile.write(tmp_path / "a.json", 1, {})
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o600


def test_a_writer_killed_at_any_moment_leaves_the_old_or_the_new_content(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    statefile.write(path, 1, {"n": -1})
    seen = set()
    for attempt in range(20):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, b"x")
            for n in range(100_000):
                statefile.write(path, 1, {"n": n, "filler": "x" * 20_000})
            os._exit(0)
        os.read(reader, 1)
        os.sched_yield()
        for _ in range(attempt * 20_000):  # a different moment every time
            pass
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
        content = statefile.read(path, 1)
        assert content is not None
        seen.add(content["n"])
    assert len(seen) > 1  # the writers did get to write

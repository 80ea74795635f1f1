"""The script that CI runs: it says why at the very end, and leaves no process behind, however it ends."""

import re
import shutil
import signal
import subprocess
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT

SECTIONS = """\
leaves:
	@setsid sleep 600 & echo $$! >left
bad:
	@echo 'E   the reason'; seq 10000; exit 3
endless:
	@echo begun; sleep 600
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository whose sections are those above."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "Makefile").write_text(SECTIONS)
    return tmp_path


def test_every_test_is_run_by_exactly_one_section() -> None:
    """Each marker has a section of its own, and the rest has one; that no test has two, tests/conftest.py sees to."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    marks = [line.partition(":")[0] for line in project["tool"]["pytest"]["ini_options"]["markers"]]
    makefile, script = (ROOT / "Makefile").read_text(), (ROOT / ".ci" / "run").read_text()
    chosen = dict(re.findall(r'^([a-z-]+):.*\n\t@.*pytest .*-m "?([a-z ]+)"?$', makefile, re.MULTILINE))
    assert sorted(chosen.values()) == sorted([*marks, " and ".join(f"not {mark}" for mark in marks)])
    sections = " ".join(re.findall(r"order\+?=\((.*)\)", script)).split()
    assert "\ntest: test-kernel " in makefile
    assert {*chosen} <= {*sections, "test-kernel"}


def working_in(folder: Path) -> list[str]:
    """Return the processes whose working directory is ``folder``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if (process / "cwd").readlink() == folder:
                found.append(f"{process.name} {(process / 'comm').read_text().strip()}")
    return found


def test_what_a_section_leaves_running_is_stopped_before_the_next(checkout: Path) -> None:
    done = subprocess.run([checkout / ".ci/run", "leaves", "bad"], capture_output=True, text=True, check=False)
    left = (checkout / "left").read_text().strip()
    assert f"stopped process {left} (sleep)" in done.stdout.partition("===== bad")[0]
    assert working_in(checkout) == []


def test_why_a_section_failed_is_said_once_more_at_the_end(checkout: Path) -> None:
    done = subprocess.run([checkout / ".ci/run", "bad", "leaves"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "E   the reason\n" in done.stdout[-8192:]
    assert done.stdout.endswith("failed: bad\n")


def test_a_run_that_is_told_to_stop_does_so_at_once_and_leaves_nothing(checkout: Path) -> None:
    with subprocess.Popen([checkout / ".ci/run", "endless"], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout
        while "begun" not in running.stdout.readline():
            assert running.poll() is None
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 130
    assert working_in(checkout) == []

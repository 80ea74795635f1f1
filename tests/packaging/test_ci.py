"""The script that CI runs: lanes side by side, one log, why at the very end, and no process left, however it ends."""

import re
import shutil
import signal
import subprocess
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT
from tests.waiting import wait_for

SECTIONS = """\
leaves:
	@setsid sleep 600 & echo $$! >left; until grep -q sleep /proc/$$!/comm; do :; done
bad:
	@echo 'E   the reason'; seq 10000; exit 3
test-links:
	@echo begun; env -i sleep 600; true
image:
	@echo also begun; touch image; sleep 600
test-plain: # each waits for the other
	@touch plain; until [ -e build ]; do sleep 0.1; done; echo plain is done
build:
	@until [ -e plain ]; do sleep 0.1; done; touch build; sleep 0.5; echo build is done
e2e:
	@echo both are done
test-binary:
	@exit 4
type: # ignores what pytest understands
	@trap '' INT; setsid sleep 600 & echo $$! >left; echo begun; sleep 600
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
    targets = re.findall(r'^([a-z-]+):.*\n\t@.*pytest .*-m "?([a-z ]+?)"?( .*csi_ub)?$', makefile, re.MULTILINE)
    chosen = {name: mark + part for name, mark, part in targets}
    halves = ["kernel --ignore=tests/csi_ub", "kernel tests/csi_ub"]
    others = [mark for mark in marks if mark != "kernel"]
    assert sorted(chosen.values()) == sorted([*halves, *others, " and ".join(f"not {mark}" for mark in marks)])
    sections = " ".join(re.findall(r"order\+?=\((.*)\)", script)).split()
    assert "\ntest: test-kernel test-plain " in makefile
    assert "\ntest-kernel: test-links test-volumes " in makefile
    assert {*chosen} - {"test-links", "test-volumes", "test-plain"} <= {*sections}
    assert "test" in sections


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


def test_lanes_run_side_by_side_and_are_shown_one_after_another(checkout: Path) -> None:
    done = subprocess.run(
        [checkout / ".ci/run", "test-plain", "build", "e2e"], capture_output=True, text=True, check=False
    )
    shown = [line for line in done.stdout.splitlines() if line.endswith("done") or line.startswith("=====")]
    assert [line.split(" (")[0] for line in shown[:-1]] == [
        *("===== test-plain", "plain is done", "===== build", "build is done", "===== e2e", "both are done")
    ]
    assert done.returncode == 0


def test_what_needs_a_build_that_failed_is_not_run(checkout: Path) -> None:
    (checkout / "Makefile").write_text(SECTIONS.replace("@until [ -e plain ]", "@exit 1; until [ -e plain ]"))
    done = subprocess.run([checkout / ".ci/run", "build", "test-binary", "e2e"], stdout=subprocess.PIPE, check=False)
    said = done.stdout.decode()
    assert said.count("not run: the build failed") == 2
    assert said.endswith("failed: build\n")


def test_a_section_that_takes_too_long_is_ended_and_leaves_nothing(checkout: Path) -> None:
    script = checkout / ".ci/run"
    text, changes = re.subn(r"(\[type\]|--kill-after)=\d+", r"\1=1", script.read_text())
    assert changes == 2
    script.write_text(text)
    done = subprocess.run([script, "type", "e2e"], capture_output=True, text=True, check=False)
    section, _, after = done.stdout.partition("===== e2e")
    assert f"stopped process {(checkout / 'left').read_text().strip()} (sleep)" in section
    assert after.startswith(" (at")
    assert done.stdout.endswith("failed: type\n")
    assert working_in(checkout) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_told_to_stop_does_so_at_once_and_leaves_nothing(checkout: Path, number: int) -> None:
    command = [str(checkout / ".ci/run"), "test-links", "image"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout
        while "begun" not in running.stdout.readline():
            assert running.poll() is None
        wait_for((checkout / "image").exists)
        running.send_signal(number)
        said = running.stdout.read()
        assert running.wait(60) == 130
    assert re.search("===== image.*\nalso begun\n", said), "what was running in the other lane is told"
    assert working_in(checkout) == []

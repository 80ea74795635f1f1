"""The demo tells the whole story, and leaves nothing behind however it ends."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ubsim.traces import traces

PAGES = [Path(__file__).parents[2] / name for name in ("README.md", "README.zh.md")]

pytestmark = pytest.mark.kernel


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A short path: that of pytest is too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        yield Path(folder)


def start(temporary: Path, **environ: str) -> "subprocess.Popen[str]":
    """Start it as a terminal would: a shell that started us in the background had us ignore SIGINT."""
    return subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-m", "ubsim.demo"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(temporary), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def shown(text: str) -> list[str]:
    """Return the lines of an output without what differs from run to run."""
    for varies in (r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}", r"\d{4}-\d\d-\d\dT[\d:+]+", r"\d+ms"):
        text = re.sub(varies, "*", text)
    return [line for line in text.splitlines() if line.strip()]


def missing(page: Path, story: str) -> list[str]:
    """Return what a page says that the demo prints, and it does not, or not in this order; ``…`` is anything."""
    (block,) = re.findall(r"^```\n(== .*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    printed = iter(shown(story))
    patterns = {line: ".*".join(re.escape(part) for part in line.split("…")) for line in shown(block)}
    return [line for line, pattern in patterns.items() if not any(re.fullmatch(pattern, seen) for seen in printed)]


def test_the_demo_runs_twice_in_a_row_and_leaves_nothing_behind(temporary: Path) -> None:
    before = traces(temporary)
    for _ in range(2):
        process = start(temporary)
        story, complaints = process.communicate(timeout=240)
        assert process.returncode == 0, story + complaints
        assert "ubnode show" in story
        assert "3 packets transmitted, 3 received, 0% packet loss" in story
        assert "written on node0, read on node1" in story
        assert all(part in story for part in ("online/trading", "HLS", "LS", "BE"))
        assert "no figure here is a UB figure" in story
        assert [missing(page, story) for page in PAGES] == [[], []]
        assert traces(temporary) == before


@pytest.mark.parametrize(
    ("after", "number"),
    [
        ("== A super-node", signal.SIGTERM),
        ("ub-cni <<<", signal.SIGINT),
        ("nsenter", signal.SIGTERM),
        ("== One volume", signal.SIGINT),
    ],
)
def test_a_stopped_demo_takes_everything_down(temporary: Path, after: str, number: signal.Signals) -> None:
    before = traces(temporary)
    process = start(temporary)
    assert process.stdout is not None
    for line in process.stdout:
        if after in line:
            break
    time.sleep(0.05)
    process.send_signal(number)
    _, complaints = process.communicate(timeout=180)
    assert process.returncode == 130, complaints
    assert "Traceback" not in complaints
    assert traces(temporary) == before


def test_a_demo_whose_plugin_fails_says_which_and_takes_everything_down(temporary: Path) -> None:
    broken = temporary / "bin"
    broken.mkdir()
    for name in ("ub-cni", "ub-csi", "ubnode"):
        (broken / name).write_text("#!/bin/sh\necho broken on purpose >&2\nexit 3\n")
        (broken / name).chmod(0o755)
    before = traces(temporary)
    process = start(temporary, UB_BIN_DIR=str(broken))
    _, complaints = process.communicate(timeout=180)
    assert process.returncode == 1
    assert "broken on purpose" in complaints
    assert "Traceback" not in complaints
    assert traces(temporary) == before

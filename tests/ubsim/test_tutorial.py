"""docs/tutorial.md: every command runs, in one shell and in order, and prints what the page says.

A block of commands is marked ``sh``, or ``sh fails`` when the last of them shall fail; ``sh setup`` is the one that is
not run here. The ``text`` block after it is a part of what they print; ``…`` stands for anything, as much space as one
likes for a space.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ubsim.traces import traces

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
MODULES = {"ubnode": "ubnode", "ub-cni": "cni_ub"}
BLOCK = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Step:
    """Commands, whether the last of them fails, and what they print."""

    commands: str
    fails: bool
    prints: str = ""


def steps() -> list[Step]:
    result: list[Step] = []
    for block in BLOCK.finditer(PAGE):
        match block["kind"]:
            case "sh" | "sh fails" as kind:
                result.append(Step(block["text"], kind == "sh fails"))
            case "text":
                last = result.pop()
                result.append(Step(last.commands, last.fails, block["text"]))
            case kind:
                assert kind == "sh setup"
    return result


def pattern(expected: str) -> re.Pattern[str]:
    pieces = [r"\s+".join(re.escape(word) for word in piece.split()) for piece in expected.split("…")]
    return re.compile(r"\s*.*?\s*".join(pieces), re.DOTALL)


def test_the_page_is_read_as_it_is_meant() -> None:
    assert len(steps()) > 10
    assert sum(step.fails for step in steps()) == 2
    assert all(step.prints.strip() for step in steps())
    assert pattern("a …\nc").search("x a  b\n\n c y")
    assert not pattern("a\nc").search("a b c")


def _from_sources(folder: Path) -> Path:
    folder.mkdir()
    for name, module in MODULES.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT}:{ROOT}/proto exec {sys.executable} -m {module} "$@"\n')
        program.chmod(0o755)
    return folder


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder for temporary files with a name that leaves room for sockets."""
    with tempfile.TemporaryDirectory(prefix="ub-") as name:
        yield Path(name)


@pytest.mark.kernel
def test_every_command_does_what_the_page_says(tmp_path: Path, short: Path) -> None:
    before = traces(Path("/run/ubsim"))
    programs = os.environ.get("UB_BIN_DIR") or str(_from_sources(tmp_path / "bin"))
    script = "".join(
        f"exec > {tmp_path}/{number}.out 2>&1\n{step.commands}\necho $? > {tmp_path}/{number}.code\n"
        for number, step in enumerate(steps())
    )
    leave = f"trap {shlex.quote(f'cd {ROOT}; unset UB_ROOT; ubnode sim down >/dev/null 2>&1')} EXIT\n"
    subprocess.run(
        ["bash", "-c", leave + script],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(short)},
        stdin=subprocess.DEVNULL,
        timeout=300,
        check=False,
    )
    for number, step in enumerate(steps()):
        printed = (tmp_path / f"{number}.out").read_text()
        code = int((tmp_path / f"{number}.code").read_text())
        assert bool(code) == step.fails, f"exit code {code} of\n{step.commands}\n{printed}"
        assert pattern(step.prints).search(printed), f"{step.commands}\nprinted\n{printed}\ninstead of\n{step.prints}"
    assert traces(Path("/run/ubsim")) == before

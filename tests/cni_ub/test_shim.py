"""The executable under a runtime that closed a standard descriptor, or whose pipe broke."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cni_ub.machine import EXECUTABLE, REPOSITORY

BUILT = [str(REPOSITORY / "dist/ub-node/ub-cni")]
CONF = b'{"cniVersion": "1.1.0", "name": "ubnet", "type": "ub-cni"}'


@pytest.fixture(params=[EXECUTABLE, pytest.param(BUILT, marks=pytest.mark.binary)], ids=["sources", "built"])
def executable(request: pytest.FixtureRequest) -> list[str]:
    """What a runtime starts; the built one is reached by an entry of its own."""
    command: list[str] = request.param
    return command


def run(executable: list[str], root: Path, verb: str, redirection: str) -> "subprocess.CompletedProcess[bytes]":
    environ = {
        "CNI_COMMAND": verb, "CNI_CONTAINERID": "c1", "CNI_IFNAME": "net1", "CNI_NETNS": "/run/netns/none",
        "CNI_PATH": "/nowhere", "UB_ROOT": str(root), "PYTHONPATH": str(REPOSITORY), "PATH": os.environ["PATH"],
    }  # fmt: skip
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *executable]
    return subprocess.run(command, env=environ, input=CONF, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
@pytest.mark.parametrize("verb", ["ADD", "VERSION"])
def test_an_answer_that_nobody_can_read_is_one_line_and_a_failure(
    executable: list[str], tmp_path: Path, verb: str, redirection: str
) -> None:
    ran = run(executable, tmp_path, verb, redirection)
    assert ran.returncode == 1
    assert b"ub-cni: cannot write the answer: " in ran.stderr
    assert b"Traceback" not in ran.stderr


def test_a_del_has_no_answer_and_needs_no_stdout(executable: list[str], tmp_path: Path) -> None:
    ran = run(executable, tmp_path, "DEL", ">&-")
    assert (ran.returncode, b"Traceback" in ran.stderr) == (0, False)


@pytest.mark.parametrize("verb", ["ADD", "DEL", "STATUS"])
@pytest.mark.parametrize("redirection", ["<&-", "</dev/null"])
def test_a_stdin_without_a_configuration_is_a_decoding_failure(
    executable: list[str], tmp_path: Path, verb: str, redirection: str
) -> None:
    ran = run(executable, tmp_path, verb, redirection)
    assert ran.returncode == 1
    assert b'"code": 6' in ran.stdout
    assert b"Traceback" not in ran.stderr


def test_an_engine_that_cannot_be_run_is_no_del_that_found_nothing(tmp_path: Path) -> None:
    script = "import sys; from cni_ub import shim; sys.exit(shim.main(lambda *call: shim.become('/nowhere', *call)))"
    environ = {
        "CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "net1", "UB_ROOT": str(tmp_path),
        "PYTHONPATH": str(REPOSITORY),
    }  # fmt: skip
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, env=environ, input=CONF, capture_output=True, timeout=60, check=False)
    assert ran.returncode == 1
    assert b"/nowhere cannot be run" in ran.stdout
    assert b"o such file" not in ran.stdout


def test_all_closed_is_a_silent_failure(executable: list[str], tmp_path: Path) -> None:
    ran = run(executable, tmp_path, "ADD", "<&- >&- 2>&-")
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, b"", b"")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "<&- 2>&-"])
@pytest.mark.parametrize(("verb", "code"), [("VERSION", 0), ("DEL", 0), ("ADD", 1), ("", 0)])
def test_an_answer_does_not_hang_on_a_stderr(
    executable: list[str], tmp_path: Path, verb: str, code: int, redirection: str
) -> None:
    ran = run(executable, tmp_path, verb, redirection)
    code = 1 if "<&-" in redirection and verb == "DEL" else code  # without a configuration
    assert ran.returncode == code
    assert (b"supportedVersions" in ran.stdout, b'"code"' in ran.stdout) == (verb == "VERSION", code == 1)

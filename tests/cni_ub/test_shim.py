"""The executable under a runtime that closed a standard descriptor, or whose pipe broke."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cni_ub.machine import EXECUTABLE, REPOSITORY

CONF = b'{"cniVersion": "1.1.0", "name": "ubnet", "type": "ub-cni"}'


def run(root: Path, verb: str, redirection: str) -> "subprocess.CompletedProcess[bytes]":
    environ = {
        "CNI_COMMAND": verb, "CNI_CONTAINERID": "c1", "CNI_IFNAME": "net1", "CNI_NETNS": "/run/netns/none",
        "CNI_PATH": "/nowhere", "UB_ROOT": str(root), "PYTHONPATH": str(REPOSITORY), "PATH": os.environ["PATH"],
    }  # fmt: skip
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *EXECUTABLE]
    return subprocess.run(command, env=environ, input=CONF, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
@pytest.mark.parametrize("verb", ["ADD", "VERSION"])
def test_an_answer_that_nobody_can_read_is_one_line_and_a_failure(tmp_path: Path, verb: str, redirection: str) -> None:
    ran = run(tmp_path, verb, redirection)
    assert ran.returncode == 1
    assert b"ub-cni: cannot write the answer: " in ran.stderr
    assert b"Traceback" not in ran.stderr


def test_a_del_has_no_answer_and_needs_no_stdout(tmp_path: Path) -> None:
    ran = run(tmp_path, "DEL", ">&-")
    assert (ran.returncode, b"Traceback" in ran.stderr) == (0, False)


@pytest.mark.parametrize("verb", ["ADD", "DEL", "STATUS"])
@pytest.mark.parametrize("redirection", ["<&-", "</dev/null"])
def test_a_stdin_without_a_configuration_is_a_decoding_failure(tmp_path: Path, verb: str, redirection: str) -> None:
    ran = run(tmp_path, verb, redirection)
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


def test_all_closed_is_a_silent_failure(tmp_path: Path) -> None:
    ran = run(tmp_path, "ADD", "<&- >&- 2>&-")
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, b"", b"")

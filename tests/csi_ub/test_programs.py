"""How the daemons of others are started."""

import os
import subprocess
from pathlib import Path

import pytest

from csi_ub import programs
from csi_ub.reasons import Unreachable


def test_a_daemon_gets_a_scope_of_its_own_where_systemd_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bin/systemd-run"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "$@" >"$0.log"\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    command = programs.apart(["/bin/echo", "served"], systemd=tmp_path)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "served\n"
    told = fake.with_name("systemd-run.log").read_text().split()
    assert told[:3] == ["--scope", "--quiet", "--collect"]
    assert told[3].startswith("--unit=ub-csi-echo-")


def test_without_systemd_it_is_started_as_it_is(tmp_path: Path) -> None:
    assert programs.apart(["/bin/echo"], systemd=tmp_path / "absent") == ["/bin/echo"]


def test_a_program_that_takes_too_long_is_to_be_waited_for_in_a_later_call() -> None:
    with pytest.raises(Unreachable, match=r"sleep 5 has not ended within 0\.1 s"):
        programs.run(["sleep", "5"], timeout_s=0.1)

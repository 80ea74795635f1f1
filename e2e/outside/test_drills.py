"""Drills: pods come and go while a node is upgraded, its plugins are killed, its runtime is restarted.

No run of CI has them: conftest.py leaves them out unless it is told. ``make drills`` is the long form, 20 pods and
three minutes each; what is set below is the short one. See docs/reliability.md.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.__main__ import INSIDE_ENV, OUTPUT
from e2e.image import Image
from e2e.machine import Machine, Spec

PODS = int(os.environ.get("UB_E2E_DRILL_PODS", "4"))
SECONDS = int(os.environ.get("UB_E2E_DRILL_SECONDS", "20"))
PATIENCE_S = 600 + 60.0 * PODS + 3 * SECONDS


@pytest.fixture(scope="module")
def node(guest: Image, disk: Path) -> Iterator[Machine]:
    with Machine(Spec(guest, disk), OUTPUT / "drills") as machine:
        yield machine
        machine.fetch("/tmp/results", OUTPUT / "drills")
        machine.fetch("/var/log", OUTPUT / "drills" / "node0-log")


def drill(node: Machine, kind: str, pods: int, seconds: int) -> dict[str, Any]:
    """Run a drill in the guest; keep what it counted, and what systemd logged meanwhile, beside the other results."""
    command = ("python3", "-m", "e2e.inside.drill", kind, str(pods), str(seconds))
    with (OUTPUT / "drills" / f"{kind}.log").open("wb", buffering=0) as log:
        done = node.run(*command, env=INSIDE_ENV, timeout_s=PATIENCE_S, seen=log.write)
    (OUTPUT / "drills" / f"{kind}-journal.log").write_text(node.shell("journalctl -o short-monotonic"))
    assert done.exit == 0, done.stderr.decode(errors="replace")[-4000:]
    found: dict[str, Any] = json.loads(done.text.splitlines()[-1])
    (OUTPUT / "drills" / f"{kind}.json").write_text(json.dumps(found, indent=1))
    return found


@pytest.mark.parametrize("kind", ["upgrade", "kills", "containerd"])
def test_pods_lose_nothing(node: Machine, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = drill(node, kind, PODS, SECONDS)
    with capsys.disabled():
        print(f"\n{json.dumps(found)}")
    assert sum(found["disturbances"].values()) > 0
    assert found["started"] >= PODS
    assert found["failed"] == []
    assert found["removed"] == found["started"]
    assert found["lost"] == {"attachment": [], "volume": [], "qos": []}
    assert found["leaked"] == []
    assert found["not running"] == []


def test_a_drill_sees_what_pods_lose(node: Machine) -> None:
    """The negative control: devices, volumes and weights are taken from pods behind everybody's back."""
    found = drill(node, "sabotage", 2, 3)
    assert all(found["lost"].values()), found

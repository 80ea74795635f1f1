"""The plug is pulled while pods start: what the node has afterwards, and whether it can start them all again."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.__main__ import INSIDE_ENV, OUTPUT
from e2e.image import Image
from e2e.inside.burst import AT_ONCE
from e2e.machine import Machine, Spec

PODS = int(os.environ.get("UB_E2E_PODS", "8"))  # 50 in the long run: an emulated node starts one in some seconds
PATIENCE_S = 120 + 12.0 * PODS


@pytest.fixture
def node(guest: Image, disk: Path) -> Iterator[Machine]:
    with Machine(Spec(guest, disk), OUTPUT / "reboot") as machine:
        yield machine
        machine.fetch("/var/log", OUTPUT / "reboot" / "node0-log")
        machine.fetch("/tmp/results", OUTPUT / "reboot")


def burst(node: Machine, verb: str) -> tuple[str, ...]:
    return "python3", "-m", "e2e.inside.burst", verb, str(PODS)


def test_a_burst_of_pods_cut_by_a_reboot_leaks_nothing(node: Machine) -> None:
    boot = node.shell("cat /proc/sys/kernel/random/boot_id").strip()
    # libcni and host-local do not flush what they write: without this their files are empty after the cut, and no DEL
    # of any plugin can mend that (containernetworking/cni issues 1055 and 1149). Ours are flushed one by one.
    node.shell("mkdir -p /var/lib/cni/networks /var/lib/cni/results && chattr -R +S +D /var/lib/cni")
    running = node.start_command(*burst(node, "start"), env=INSIDE_ENV)
    wait_for_pods(node, PODS // 2)
    assert running.exit.empty(), bytes(running.output["stderr"]).decode(errors="replace")
    assert node.reset() != boot
    done = node.run(*burst(node, "recover"), env=INSIDE_ENV, timeout_s=PATIENCE_S)
    assert done.exit == 0, done.stderr.decode(errors="replace")[-4000:]
    found: dict[str, Any] = json.loads(done.text.splitlines()[-1])
    print(found)
    assert found["dead"] >= PODS // 2, "the pods that the reboot killed are known to the runtime"
    assert len(found["forgotten"]) <= AT_ONCE, "only sandboxes in flight are lost to the runtime, with their addresses"
    assert found["leaked_by_reboot"] == [], "removing the others gave everything back"
    assert (found["devices"], found["addresses"]) == (PODS, PODS), (
        "then every pod gets a device and an address of its own"
    )
    assert found["leaked_by_burst"] == []


def wait_for_pods(node: Machine, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while int(node.shell("ls /tmp/results/burst 2>/dev/null | wc -l")) < count:
        assert time.monotonic() < deadline, f"no {count} pods within {PATIENCE_S:.0f} s"
        time.sleep(0.5)

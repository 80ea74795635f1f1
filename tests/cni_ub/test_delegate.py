"""An IPAM plugin is a stranger: it may be missing, hang, or leave processes behind that hold what it was given."""

import os
import time
from pathlib import Path

import pytest

from tests.cni_ub.machine import Machine
from tests.waiting import wait_for

pytestmark = pytest.mark.kernel

BIN_SH = "#!/bin/sh\n"
ANSWER = """echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.77.0.5/24"}]}'\n"""
LEAVES_A_CHILD = 'cat >/dev/null\nsleep 300 &\necho $! >"${0%/*}/child"\n'


def install(machine: Machine, name: str, text: str, mode: int = 0o755) -> None:
    plugin = machine.ipam.folder / name
    plugin.write_text(text)
    plugin.chmod(mode)


@pytest.mark.parametrize(
    ("kind", "path", "code"),
    [("absent", None, 7), ("folder", None, 7), ("data", None, 7), ("obedient", "", 4), ("obedient", "/nowhere", 7)],
)
def test_a_plugin_that_is_not_there_is_refused_before_a_device_is_taken(
    machine: Machine, pod: str, kind: str, path: str | None, code: int
) -> None:
    (machine.ipam.folder / "folder").mkdir()
    install(machine, "data", "no program", 0o644)
    before = machine.state()
    calls = len(machine.provider.calls)
    conf = machine.conf(ipam={"type": kind})
    environ = {} if path is None else {"CNI_PATH": path}
    refused, message = machine.call("ADD", conf, pod=pod, **environ).error
    assert (refused, kind in message) == (code, True)
    asked = {call.operation for call in machine.provider.calls[calls:]}
    assert asked.isdisjoint({"allocate", "expose", "move_eid"})
    assert machine.state() == before
    for _ in range(2):
        assert machine.call("DEL", conf, pod=pod, **environ).code == 0
    assert machine.ledger == []


def test_a_plugin_that_may_hold_addresses_is_missed(machine: Machine, pod: str) -> None:
    conf = machine.conf(ipam={"type": "obedient"})
    assert machine.call("ADD", conf, pod=pod).code == 0
    assert machine.call("DEL", conf, pod=pod, CNI_PATH="/nowhere").code == 1
    assert len(machine.ledger) == 1
    assert machine.call("DEL", conf, pod=pod).code == 0
    assert (machine.ledger, machine.ipam.calls) == ([], ["ADD", "DEL"])


def test_an_attachment_without_addresses_does_not_wait_for_a_plugin_that_came_later(machine: Machine, pod: str) -> None:
    assert machine.call("ADD", machine.conf(), pod=pod).code == 0
    assert machine.call("DEL", machine.conf(ipam={"type": "absent"}), pod=pod).code == 0
    assert machine.ledger == []


@pytest.mark.parametrize("start", ["", "setsid "])
def test_a_child_that_holds_the_plugins_stdout_keeps_nobody_waiting(machine: Machine, pod: str, start: str) -> None:
    install(machine, "parent", BIN_SH + LEAVES_A_CHILD.replace("sleep", f"{start}sleep") + ANSWER)
    conf = machine.conf(ipam={"type": "parent"})
    began = time.monotonic()
    try:
        added = machine.call("ADD", conf, pod=pod)
        assert added.document["ips"][0]["address"] == "10.77.0.5/24"
        assert machine.call("DEL", conf, pod=pod).code == 0
        assert time.monotonic() - began < 20
    finally:
        child = int((machine.ipam.folder / "child").read_text())
        if start:  # it made a session of its own, so it may stay
            os.kill(child, 9)
    wait_for(lambda: not lives(child))


def lives(pid: int) -> bool:
    """Whether it runs; its parent may be slow to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("ending", ["exit 3", "kill -9 $$", "exec >&-; exit 0"])
def test_a_plugin_that_fails_with_a_child_left_is_taken_back_at_once(machine: Machine, pod: str, ending: str) -> None:
    before = machine.state()
    install(machine, "parent", f"{BIN_SH}[ $CNI_COMMAND = DEL ] && exit 0\n{LEAVES_A_CHILD}{ending}\n")
    began = time.monotonic()
    assert machine.call("ADD", machine.conf(ipam={"type": "parent"}), pod=pod).code == 1
    assert time.monotonic() - began < 20
    child = int((machine.ipam.folder / "child").read_text())
    wait_for(lambda: not lives(child))
    assert machine.state() == before


def test_a_long_answer_is_read_whole_and_an_endless_one_is_ended(machine: Machine, pod: str) -> None:
    padding = "head -c 300000 /dev/zero | tr '\\0' ' '\n"
    install(machine, "wordy", f"{BIN_SH}cat >/dev/null\n{padding}{ANSWER}")
    conf = machine.conf(ipam={"type": "wordy"})
    assert machine.call("ADD", conf, pod=pod).code == 0
    install(machine, "wordy", f"{BIN_SH}[ $CNI_COMMAND = DEL ] && exit 0\nexec cat /dev/zero\n")
    assert machine.call("DEL", conf, pod=pod).code == 0
    code, message = machine.call("ADD", conf, pod=pod).error
    assert (code, "printed more than" in message) == (11, True)


@pytest.mark.parametrize("text", ['{"cniVersion": "1.0.0", "ips": [{"address": "10.77.0.5/24", "gateway": 5}]}', "NaN"])
def test_an_answer_that_no_runtime_could_read_undoes_the_add(machine: Machine, pod: str, text: str) -> None:
    before = machine.state()
    machine.ipam.order("answer", "ADD", text)
    assert machine.call("ADD", machine.conf(ipam={"type": "obedient"}), pod=pod).error[0] == 6
    assert (machine.state(), machine.ipam.calls) == (before, ["ADD", "DEL"])

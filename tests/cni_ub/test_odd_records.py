"""A record that lies: it decodes, and what it says cannot be. Or what lies in its place is no file at all.

It concerns the device it is named after, and no other; DEL and repair are done with it, and people are told.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cni_ub import reconcile
from cni_ub.reconcile import Condition
from tests.cni_ub.machine import Machine
from tests.ubhost.test_ledger import folder, put
from ubhost.doctor.look import look
from ubnode.__main__ import main

pytestmark = pytest.mark.kernel

NAME = "urma_1@c1@net1.json"
VALID = {"cni.dev/valid-attachments": [{"containerID": "c2", "ifname": "net1"}]}
LIES: list[tuple[str, Any]] = [
    ("eids", [["m", 0, "zz"]]),
    ("limit_mbps", [-5, -6]),
    ("delegate.type", "../../bin/sh"),
    ("delegate.config", {}),
    ("link.addresses", ["not-an-ip"]),
    ("link.mtu", 3),
    ("link.mac", "zz"),
    ("state", "odd"),
    ("nonce", 7),
    ("netns", "/run/netns/a\0b"),
    ("since", 1e300),
    ("since", float("nan")),
    ("pod", "\ud800"),
    ("given.ips", [{}]),
    ("netns_inode", -1),
    ("netns_inode", 10**400),
    ("shaper", "lo"),
    ("service_levels", [["udma2", 0, 99]]),
    ("container", "c2"),
    ("device", "urma_2"),
]


@pytest.fixture
def attached(machine: Machine, pod: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """What the machine was like before urma_1 was attached to a pod, and urma_2 to another that stays as it is."""
    monkeypatch.setenv("UB_ROOT", str(machine.root))
    assert machine.call("ADD", machine.conf(deviceID="urma_2"), pod=machine.new_pod("pod-2"), container="c2").code == 0
    before = machine.state()
    conf = machine.conf(ipam={"type": "obedient"})
    assert machine.call("ADD", conf, pod=pod, CNI_ARGS="K8S_POD_NAME=web").code == 0
    return before


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    """Return what ``ubnode attachments --json`` says of each device; the table says it too."""

    def refuse(constant: str) -> None:
        pytest.fail(constant)

    capsys.readouterr()
    assert main(["attachments"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert main(["attachments", "--json"]) == 0
    out = capsys.readouterr().out
    out.encode()
    rows = {row["device"]: row for row in json.loads(out, parse_constant=refuse)["attachments"]}
    assert [line.split()[0] for line in table] == ["DEVICE", *rows]
    return rows


@pytest.mark.parametrize(("path", "odd"), LIES, ids=str)
def test_a_record_that_cannot_be_true_holds_nobody_up(
    machine: Machine, pod: str, attached: tuple[Any, ...], capsys: pytest.CaptureFixture[str], path: str, odd: object
) -> None:
    ledger = machine.host.ledger
    for place in (ledger.folder, ledger.copies):
        content = json.loads((place / NAME).read_text())
        put(path, odd)(content)
        (place / NAME).write_text(json.dumps(content))
    conf = machine.conf(ipam={"type": "obedient"})
    assert "damaged" in told(capsys)["urma_1"]["state"]
    assert look(machine.host.roots).damaged == ("urma_1",)
    assert machine.call("CHECK", {**conf, "prevResult": {"cniVersion": "1.1.0"}}, pod=pod).error[0] == 104
    code, message = machine.call("ADD", conf, pod=machine.new_pod("pod-3"), container="c3").error
    assert (code, "c1" in message) == (101, True)
    assert machine.call("GC", machine.conf(**VALID), pod="").code == 0
    conditions = {found.record.device: found.condition for found in reconcile.repair(machine.host)}
    assert conditions == {"urma_1": Condition.UNCLEAR, "urma_2": Condition.HEALTHY}
    assert machine.call("DEL", conf, pod=pod).code == 0
    assert (machine.members_in(pod), machine.names_in(pod)) == ((), {"lo"})
    assert machine.state()[2:] == attached[2:]  # addresses of before are lost with the record
    assert machine.ipam.calls.count("DEL") == 1


@pytest.mark.parametrize("make", [Path.mkdir, folder, os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
@pytest.mark.parametrize("has_copy", [True, False])
def test_what_is_no_file_concerns_its_own_device_only(
    machine: Machine, pod: str, attached: tuple[Any, ...], capsys: pytest.CaptureFixture[str],
    make: Callable[[Path], None], has_copy: bool,
) -> None:  # fmt: skip
    ledger = machine.host.ledger
    (ledger.folder / NAME).unlink()
    make(ledger.folder / NAME)
    if not has_copy:
        (ledger.copies / NAME).unlink()
    assert ("damaged" in told(capsys)["urma_1"]["state"]) is not has_copy
    assert look(machine.host.roots).damaged == (() if has_copy else ("urma_1",))
    third = machine.new_pod("pod-3")
    assert machine.call("ADD", machine.conf(), pod=third, container="c3").error[0] == 101
    assert machine.call("DEL", machine.conf(deviceID="urma_2"), pod="/run/netns/pod-2", container="c2").code == 0
    assert machine.call("ADD", machine.conf(deviceID="urma_2"), pod=third, container="c3").code == 0
    gone = machine.call("DEL", machine.conf(), pod=pod)
    assert (machine.members_in(pod), machine.names_in(pod)) == ((), {"lo"})
    if make is folder:
        assert gone.error[0] == 5
        assert f"cannot remove {ledger.folder / NAME}" in gone.error[1]
        assert "move it away" in gone.error[1]
        again = machine.call("ADD", machine.conf(), pod=machine.new_pod("pod-4"), container="c4")
        assert (again.error[0], str(ledger.folder / NAME) in again.error[1]) == (5, True)
        (ledger.folder / NAME).rename(machine.root / "aside")
        gone = machine.call("DEL", machine.conf(), pod=pod)
    assert gone.code == 0
    assert machine.ledger == ["urma_2@c3@net1.json"]
    assert machine.call("ADD", machine.conf(), pod=machine.new_pod("pod-5"), container="c5").code == 0


def test_an_ipam_plugin_is_asked_even_in_a_version_that_nobody_knows(machine: Machine, pod: str) -> None:
    conf = machine.conf(ipam={"type": "obedient"})
    assert machine.call("ADD", conf, pod=pod).code == 0
    assert machine.call("STATUS", conf).code == 0  # which asks for its versions
    content = json.loads((machine.host.ledger.folder / NAME).read_text())
    put("delegate.config.cniVersion", "7.7.7")(content)
    (machine.host.ledger.folder / NAME).write_text(json.dumps(content))
    assert machine.call("GC", machine.conf(**{"cni.dev/valid-attachments": []}), pod="").code == 0
    assert machine.ipam.calls[-1] == "DEL"
    assert machine.ledger == []

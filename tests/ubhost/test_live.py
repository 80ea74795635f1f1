"""The commands for people on a live, simulated super-node: what they print, and how soon."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ubhost.providers import choose
from ubsim.handles import NodeHandle, SuperNodeHandle

pytestmark = [pytest.mark.kernel, pytest.mark.scenario(Path(__file__).with_name("pair.yaml"))]


def ubnode(node: NodeHandle, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **node.environ}
    return subprocess.run(
        [sys.executable, "-m", "ubnode", *words], env=environ, capture_output=True, text=True, check=False
    )


def shown(node: NodeHandle, *words: str) -> dict[str, Any]:
    done = ubnode(node, "show", *words, "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@contextmanager
def watching(node: NodeHandle) -> Iterator["subprocess.Popen[str]"]:
    environ = {**os.environ, **node.environ}
    command = [sys.executable, "-u", "-m", "ubnode", "watch"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout
        while "watching" not in watcher.stdout.readline():
            pass
        yield watcher
        watcher.terminate()


def test_every_node_tells_where_it_is_and_what_it_has(supernode: SuperNodeHandle) -> None:
    document = shown(supernode["node0"])
    assert (document["provider"], document["level"], document["sharing"]) == ("sim", "stand-in", "exclusive")
    assert document["topology"]["position"] == {"super_node_id": 7, "slot_id": 0, "host_name": "node0"}
    assert [(node["host_name"], node["hops"]) for node in document["topology"]["nodes"]] == [("node0", 0), ("node1", 1)]
    assert [device["members"] for device in document["devices"]] == [
        ["bonding_dev_1", "udma2", "udma3"],
        ["bonding_dev_2", "udma4", "udma5"],
    ]
    assert document["notes"] == []
    assert shown(supernode["node1"])["topology"]["position"]["slot_id"] == 1


def test_capacity_knows_the_memory_of_every_node(supernode: SuperNodeHandle) -> None:
    known = shown(supernode["node0"], "capacity")["capacity"]
    assert known["borrowed"] == 4 << 30
    assert [node["total"] > 0 for node in known["memory"]] == [True, True]


def test_what_a_pod_sees_is_shown_from_its_own_namespace(ub_node: NodeHandle) -> None:
    provider = choose(ub_node.roots)
    device = provider.devices()[0]
    with subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 60"], stdout=subprocess.PIPE) as pod:
        assert pod.stdout
        pod.stdout.readline()
        path = f"/proc/{pod.pid}/ns/net"
        netns = os.open(path, os.O_RDONLY)
        try:
            provider.expose_all(device.members, netns)
            provider.move_eids(device.eids[:2], netns)
            seen = shown(ub_node, "eids", "--netns", path)
            assert seen["exposed"] == sorted(device.members)
            assert [slot["eid"] for slot in seen["eids"]] == [str(slot.eid) for slot in device.eids[:2]]
            assert "udma3" in ubnode(ub_node, "show", "eids", "--netns", path).stdout
        finally:
            os.close(netns)
            pod.kill()


def test_a_port_that_falls_is_told_at_once_with_whom_it_touches(
    supernode: SuperNodeHandle, ub_node: NodeHandle
) -> None:
    with watching(ub_node) as watcher:
        assert watcher.stdout
        started = time.monotonic()
        supernode.happen("port", port="node0/0/0/0", state="DOWN")
        line = watcher.stdout.readline()
        assert time.monotonic() - started < 9  # 0.2 s on an idle machine; the back-stop alone would take 10
        assert "port down: die 00001 port 0: link to" in line
        assert "plane 0 has 0 of 9 ports up: it is cut off; touches urma_1 urma_2" in line


def test_while_ubse_restarts_its_devices_are_not_replaced_by_others(ub_node: NodeHandle) -> None:
    ub_node.stop_ubse()
    document = shown(ub_node, "devices")
    assert document["devices"] == []
    assert "UBSE is not running" in document["notes"][0]
    doctor = ubnode(ub_node, "doctor")
    assert doctor.returncode == 1
    assert "problem  UBSE does not answer as it should" in doctor.stdout
    ub_node.start_ubse()
    assert len(shown(ub_node, "devices")["devices"]) == 2
    assert ubnode(ub_node, "doctor").returncode == 0


def test_a_wrong_namespace_is_one_clear_line(ub_node: NodeHandle) -> None:
    done = ubnode(ub_node, "show", "eids", "--netns", "/etc/hostname")
    assert done.returncode == 2
    assert done.stderr == "ubnode show: /etc/hostname is not a network namespace\n"

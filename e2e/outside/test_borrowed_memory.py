"""Memory that comes and goes under running pods, as memory borrowed over UB does, while nri-qos runs.

QEMU plugs it into a NUMA node of the guest that has no CPUs, and pulls it. Level: stand-in; the kernel's part is real.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from e2e.__main__ import INSIDE_ENV, OUTPUT
from e2e.image import Image
from e2e.machine import EMPTY_NODE, Machine, Spec
from e2e.outside.conftest import wait_for

CLASS = "qos.unifiedbus.com/class"
HELD = 48 << 20
HOLD = f"import time; kept = bytearray(b'x') * {HELD}; time.sleep(86400)"
LOG = "/tmp/results/nri-qos.log"
PATIENCE_S = 240


@dataclass(frozen=True)
class Pod:
    node: Machine
    name: str
    pid: int
    cgroup: str

    def knob(self, file: str) -> str:
        return self.node.shell(f"cat {self.cgroup}/{file}").strip()

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of its own (not of files) by NUMA node: ``{"N0": 4096}``."""
        (line,) = (line for line in self.knob("memory.numa_stat").splitlines() if line.startswith("anon "))
        return {node: int(size) for node, size in (word.split("=") for word in line.split()[1:])}


@pytest.fixture(scope="module")
def node(guest: Image, disk: Any) -> Iterator[Machine]:
    with Machine(Spec(guest, disk, has_empty_node=True), OUTPUT / "borrowed") as machine:
        machine.shell("mkdir -p /tmp/results; echo online_movable > /sys/devices/system/memory/auto_online_blocks")
        machine.start_command("sh", "-c", f"exec /mnt/payload/ub-node/nri-qos >{LOG} 2>&1", env={"UB_ROOT": "/"})
        wait_for(lambda: "synchronized with the runtime" in said(machine), "nri-qos is registered")
        yield machine
        machine.fetch("/tmp/results", OUTPUT / "borrowed")
        machine.fetch("/var/log", OUTPUT / "borrowed" / "node0-log")


def said(node: Machine) -> str:
    return node.shell(f"cat {LOG} 2>/dev/null || true")


def run(node: Machine, name: str, qos: str = "", *, on_borrowed: bool = False) -> Pod:
    annotations = [f"{CLASS}={qos}"] if qos else []
    holder = ("/usr/bin/numactl", f"--membind={EMPTY_NODE}", "/usr/bin/python3", "-I", "-S", "-c", HOLD)
    command = ["python3", "-m", "e2e.inside.pods", "run", name, *annotations, *(["--", *holder] if on_borrowed else ())]
    done = node.run(*command, env=INSIDE_ENV, timeout_s=PATIENCE_S)
    assert done.exit == 0, done.stderr.decode(errors="replace")[-3000:]
    made = json.loads(done.text)
    pod = Pod(node, name, made["pid"], made["cgroup"])
    if on_borrowed:
        borrowed = f"N{EMPTY_NODE}"
        wait_for(lambda: pod.memory.get(borrowed, 0) >= HELD, f"{name} has its memory there")
    return pod


def remove(node: Machine, *names: str) -> None:
    for name in names:
        node.shell(f"python3 -m e2e.inside.pods remove {name}", env=INSIDE_ENV, timeout_s=PATIENCE_S)


def users(node: Machine) -> dict[str, int]:
    """What nri-qos says of who has how much memory on the borrowed node."""
    found = json.loads(node.shell(f"/mnt/payload/ub-node/ubnode qos node {EMPTY_NODE} --users --json"))
    return {user["pod"]: user["bytes"] for user in found}


def nodes_with_memory(node: Machine) -> str:
    return node.shell("cat /sys/devices/system/node/has_memory").strip()


def borrow(node: Machine) -> None:
    node.plug_memory()
    wait_for(lambda: nodes_with_memory(node) == "0-3", "the guest has the memory")


def give_back(node: Machine) -> None:
    node.unplug_memory()
    wait_for(lambda: nodes_with_memory(node) == "0-2", "the guest has let the memory go")


def check_loop_is_well(node: Machine) -> None:
    assert "cannot be written" not in said(node)
    assert "did not become what was written" not in said(node)
    assert "the loop failed" not in said(node)


def test_memory_that_comes_is_for_offline_pods_and_goes_when_its_users_have_gone(node: Machine) -> None:
    online, offline, undeclared = run(node, "online", "LS"), run(node, "offline", "BE"), run(node, "undeclared")
    assert offline.knob("cpuset.mems") == "0-2"
    borrow(node)
    wait_for(lambda: offline.knob("cpuset.mems") == "0-3", "an offline pod that runs is let in")
    assert online.knob("cpuset.mems.effective") == "0-1", "an online one is kept off"
    assert undeclared.knob("cpuset.mems.effective") == "0-3", "the control: the kernel lets in whom nobody keeps off"
    user = run(node, "user", "BE", on_borrowed=True)
    assert user.knob("cpuset.mems") == "0-3", "a new one is let in at once"
    wait_for(lambda: users(node).get("default/user", 0) >= HELD, "ubnode names who uses it")
    assert users(node)["default/offline"] == 0, "and who may, and does not"
    remove(node, "user")
    wait_for(lambda: not any(users(node).values()), "nobody is left on it")
    give_back(node)
    wait_for(lambda: offline.knob("cpuset.mems") == "0-2", "an offline pod that runs is told")
    assert users(node) == {}
    assert online.knob("cpuset.mems.effective") == "0-1"
    check_loop_is_well(node)
    remove(node, "online", "offline", "undeclared")


def test_memory_that_goes_while_it_is_used_leaves_its_user_alive_on_the_rest(node: Machine) -> None:
    borrow(node)
    user = run(node, "user", "BE", on_borrowed=True)
    give_back(node)
    wait_for(lambda: user.knob("cpuset.mems") == "0-2", "nri-qos names the nodes that are left")
    assert sum(user.memory.values()) >= HELD, "its pages have moved"
    assert node.shell(f"cat /proc/{user.pid}/comm").strip() == "python3"
    late = run(node, "late", "BE")
    assert late.knob("cpuset.mems") == "0-2"
    check_loop_is_well(node)
    remove(node, "user", "late")

"""Calls that die at every moment, and what makes the device whole again. Source: reference/cni.md 4, H29, H48."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cni_ub.machine import REPOSITORY
from tests.cni_ub.node import SimulatedNode
from tests.waiting import wait_for

pytestmark = pytest.mark.kernel

NO_SUCH_MOMENT = 100


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedNode]:
    node = SimulatedNode.up(tmp_path_factory.mktemp("n"), 2)
    node.start_agent()  # so that what heals is quick; the dying calls do not use it
    yield node
    node.down()


@pytest.fixture
def node(shared_node: SimulatedNode) -> Iterator[SimulatedNode]:
    """A node whose devices are all free, and will be so again whatever a test did."""
    before = shared_node.state()
    yield shared_node
    if shared_node.agent is None or shared_node.agent.poll() is not None:
        shared_node.agent = None
        shared_node.start_agent()
    for pod in list(shared_node.pods):
        shared_node.kill_pod(pod)
    shared_node.obey_no_more()
    wait_for(lambda: not shared_node.pending() and shared_node.state() == before)


def die(
    node: SimulatedNode, verb: str, moment: int, number: str, pod: str, container: str = "c1", device: str = "urma_1"
) -> int:
    """Let a call die; return the exit code of its process."""
    environ = {
        **os.environ,
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": container,
        "CNI_NETNS": pod,
        "CNI_IFNAME": "net1",
        "CNI_PATH": str(node.ipam.folder),
        "UB_ROOT": str(node.root),
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'proto'}",
    }
    command = [sys.executable, "-m", "tests.cni_ub.dying_call", str(moment), number]
    conf = json.dumps(node.conf(device, mtu=1400, qos={"maxMbps": 800}))
    dead = subprocess.run(
        command, input=conf.encode(), env=environ, capture_output=True, check=False, timeout=180, cwd=REPOSITORY
    )
    assert b"Traceback" not in dead.stderr, dead.stderr
    return dead.returncode


Healer = Callable[[SimulatedNode, str], None]


def heal_by_del(node: SimulatedNode, pod: str) -> None:
    assert node.call("DEL", node.conf(), pod=pod).code == 0


def heal_by_another_add(node: SimulatedNode, pod: str) -> None:
    second = node.new_pod("pod-2")
    attached = node.call("ADD", node.conf(), pod=second, container="c2")
    if attached.code:  # the first one is alive and whole: it died after its last change
        assert attached.error[0] == 101
        heal_by_del(node, pod)
    else:
        assert node.call("DEL", node.conf(), pod=second, container="c2").code == 0
    node.kill_pod("pod-2")


def heal_by_gc(node: SimulatedNode, pod: str) -> None:
    stale: dict[str, Any] = {"cni.dev/valid-attachments": []}
    assert node.call("GC", node.conf(**stale)).code == 0


def heal_by_adding_again(node: SimulatedNode, pod: str) -> None:
    """A runtime must not do that without a DEL; it works all the same, unless the attachment is whole."""
    again = node.call("ADD", node.conf(), pod=pod)
    assert again.code == 0 or again.error[0] == 101
    heal_by_del(node, pod)


HEALERS: list[Healer] = [heal_by_del, heal_by_another_add, heal_by_gc, heal_by_adding_again]
STRIDE: dict[Healer, int] = {
    heal_by_del: 1,
    heal_by_another_add: 2,
    heal_by_gc: 3,
    heal_by_adding_again: 3,
}  # in moments, to save time


@pytest.mark.parametrize("heal", HEALERS)
def test_an_add_that_is_killed_at_any_moment_is_made_whole(node: SimulatedNode, heal: Healer) -> None:
    before = node.state()
    pod = node.new_pod("pod-1")
    moment = 1
    while (code := die(node, "ADD", moment, "SIGKILL", pod)) != NO_SUCH_MOMENT:
        assert code == -9, moment
        heal(node, pod)
        assert (node.state(), node.names_in(pod)) == (before, {"lo"}), moment
        moment += STRIDE[heal]
    assert moment > 25
    heal_by_del(node, pod)
    node.kill_pod("pod-1")
    assert node.state() == before


@pytest.mark.parametrize("heal", HEALERS[:3])
def test_a_del_that_is_killed_at_any_moment_is_made_whole(node: SimulatedNode, heal: Healer) -> None:
    before = node.state()
    pod = node.new_pod("pod-1")
    moment, code = 1, -9
    while code != NO_SUCH_MOMENT:
        assert node.call("ADD", node.conf(mtu=1400, qos={"maxMbps": 800}), pod=pod).code == 0
        code = die(node, "DEL", moment, "SIGKILL", pod)
        assert code in (-9, NO_SUCH_MOMENT), moment
        heal(node, pod)
        assert (node.state(), node.names_in(pod)) == (before, {"lo"}), moment
        moment += STRIDE[heal]
    assert moment > 15
    node.kill_pod("pod-1")


def test_an_add_that_is_told_to_stop_at_any_moment_undoes_itself(node: SimulatedNode) -> None:
    before = node.state()
    pod = node.new_pod("pod-1")
    moment = 1
    while (code := die(node, "ADD", moment, "SIGTERM", pod)) != NO_SUCH_MOMENT:
        if code == 0:  # it was done already, and said so
            heal_by_del(node, pod)
        assert (node.state(), node.names_in(pod)) == (before, {"lo"}), moment
        moment += 2
    heal_by_del(node, pod)
    node.kill_pod("pod-1")


def test_a_pod_that_dies_with_a_killed_call_leaves_nothing(node: SimulatedNode) -> None:
    before = node.state()
    moment = 1
    while True:
        pod = node.new_pod("pod-1")
        code = die(node, "ADD", moment, "SIGKILL", pod)
        node.kill_pod("pod-1")
        assert node.call("DEL", node.conf(), pod="").code == 0
        wait_for(lambda: node.state()[0] == before[0] and not node.pending())
        if code == NO_SUCH_MOMENT:
            break
        moment += 5
    assert node.state() == before


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_an_agent_that_is_killed_in_the_middle_of_a_call(node: SimulatedNode, verb: str) -> None:
    """The shim notices, and does the work itself."""
    before = node.state()
    pod = node.new_pod("pod-1")
    if verb == "DEL":
        assert node.call("ADD", node.conf(), pod=pod).code == 0
    node.ipam.order("sleep", verb, "0.7")
    calls = node.ipam.calls.count(verb)
    started = node.start(verb, node.conf(), pod=pod)
    wait_for(lambda: node.ipam.calls.count(verb) > calls)
    assert node.agent
    node.agent.kill()
    node.agent.wait()
    node.ipam.obey_no_more()
    assert started.wait().code == 0
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    assert (node.state(), node.names_in(pod)) == (before, {"lo"})
    node.kill_pod("pod-1")
    node.start_agent()


def test_the_lone_executable_and_the_agent_keep_out_of_each_others_way(node: SimulatedNode) -> None:
    before = node.state()
    pod = node.new_pod("pod-1")
    for _ in range(5):
        assert node.call("ADD", node.conf(), pod=pod).code == 0
        assert die(node, "DEL", 10_000, "SIGKILL", pod) == NO_SUCH_MOMENT
        assert die(node, "ADD", 10_000, "SIGKILL", pod) == NO_SUCH_MOMENT
        assert node.call("DEL", node.conf(), pod=pod).code == 0
    assert node.state() == before
    node.kill_pod("pod-1")

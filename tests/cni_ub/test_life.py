"""Random lives of a node: verbs, kills and what pods do to their links, against a model of who may hold what.

The model knows which attachment must hold which device, which must not, and of which it cannot be sure because a call
was killed. Whatever happened, a device has one holder at most; and when everything is deleted, nothing is left.
"""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.cni_ub.node import SimulatedNode
from tests.cni_ub.test_crash import die
from tests.waiting import wait_for

pytestmark = pytest.mark.kernel

DEVICES = [1, 2]
PODS = ["a", "b"]
MISCHIEF = [
    "link set net1 name stolen",
    "link set net1 alias mine",
    "link set net1 mtu 1300 down",
    "link set net1 address 02:00:00:00:00:99",
    "addr flush dev net1",
    "link property add dev net1 altname ipourma1",
    "link set net1 netns hiding name secret",
    "link del net1",
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedNode]:
    running = SimulatedNode.up(tmp_path_factory.mktemp("n"), len(DEVICES))
    running.start_agent()
    yield running
    running.down()


@dataclass(frozen=True)
class Attached:
    pod: str
    device: int


class Life(RuleBasedStateMachine):
    node: SimulatedNode

    def __init__(self) -> None:
        super().__init__()
        self.sure: dict[str, Attached] = {}  # by container: it has the device
        self.unsure: dict[str, Attached] = {}  # it may have some of it
        self.hiding = False

    @initialize()
    def begin(self) -> None:
        self.before = self.node.state()
        for pod in PODS:
            self.node.new_pod(pod)

    def conf(self, device: int) -> dict[str, object]:
        address = f'{{"cniVersion": "1.0.0", "ips": [{{"address": "10.7{device}.0.5/24"}}]}}'
        self.node.ipam.order("answer", "ADD", address)
        return self.node.conf(f"urma_{device}")

    @rule(pod=st.sampled_from(PODS), device=st.sampled_from(DEVICES))
    def add(self, pod: str, device: int) -> None:
        answer = self.node.call("ADD", self.conf(device), pod=f"/run/netns/{pod}", container=pod)
        held_by_other = any(a.device == device and name != pod for name, a in self.sure.items())
        if answer.code == 0:
            assert pod not in self.sure
            assert not held_by_other
            self.sure[pod] = Attached(pod, device)
            self.unsure.pop(pod, None)
            for name in [n for n, a in self.unsure.items() if a.device == device]:
                del self.unsure[name]  # it was healed
        else:
            is_busy = pod in self.sure or held_by_other or bool(self.unsure)
            assert is_busy or self.hiding, answer

    @rule(pod=st.sampled_from(PODS))
    def delete(self, pod: str) -> None:
        answer = self.node.call("DEL", self.conf(1), pod=f"/run/netns/{pod}", container=pod)
        assert answer.code == 0, answer
        assert self.node.link_in(f"/run/netns/{pod}", "net1") is None
        self.sure.pop(pod, None)
        self.unsure.pop(pod, None)

    @rule(pod=st.sampled_from(PODS), device=st.sampled_from(DEVICES), moment=st.integers(1, 30))
    def die_while_adding(self, pod: str, device: int, moment: int) -> None:
        if pod in self.sure:
            return
        self.conf(device)
        die(self.node, "ADD", moment, "SIGKILL", f"/run/netns/{pod}", pod, f"urma_{device}")
        if not any(a.device == device for a in self.sure.values()):
            self.unsure[pod] = Attached(pod, device)

    @rule(pod=st.sampled_from(PODS), moment=st.integers(1, 20))
    def die_while_deleting(self, pod: str, moment: int) -> None:
        if pod not in self.sure:
            return
        die(self.node, "DEL", moment, "SIGKILL", f"/run/netns/{pod}", pod)
        self.unsure[pod] = self.sure.pop(pod)

    @rule(pod=st.sampled_from(PODS), what=st.sampled_from(MISCHIEF))
    def make_mischief(self, pod: str, what: str) -> None:
        if "hiding" in what and not self.hiding:
            self.node.new_pod("hiding")
            self.hiding = True
        subprocess.run(["ip", "-n", pod, *what.split()], check=False, stderr=subprocess.DEVNULL)

    @rule(pod=st.sampled_from(PODS))
    def replace_pod(self, pod: str) -> None:
        """The namespace dies, and a container of the same name comes up in a new one."""
        self.node.kill_pod(pod)
        if attached := self.sure.pop(pod, None):
            self.unsure[pod] = attached
        self.node.new_pod(pod)

    @rule(keep=st.sets(st.sampled_from(PODS)))
    def collect(self, keep: set[str]) -> None:
        valid = [{"containerID": pod, "ifname": "net1"} for pod in sorted(keep)]
        conf = self.node.conf(**{"cni.dev/valid-attachments": json.loads(json.dumps(valid))})
        assert self.node.call("GC", conf).code == 0
        for pod in set(PODS) - keep:
            self.sure.pop(pod, None)

    @rule()
    def repair(self) -> None:
        self.node.repair()

    @invariant()
    def each_device_has_one_holder_at_most(self) -> None:
        holders = [name.split("@")[0] for name in self.node.ledger]
        assert len(holders) == len(set(holders))
        assert all(count <= 1 for count in self.node.exposed().values())

    @invariant()
    def what_was_attached_is_in_the_ledger(self) -> None:
        ledger = self.node.ledger
        for pod, attached in self.sure.items():
            assert f"urma_{attached.device}@{pod}@net1.json" in ledger

    def teardown(self) -> None:
        for pod in PODS:
            if pod in self.node.pods:
                assert self.node.call("DEL", self.conf(1), pod=f"/run/netns/{pod}", container=pod).code == 0
        for pod in list(self.node.pods):
            self.node.kill_pod(pod)
        wait_for(lambda: not self.node.pending() and self.node.state() == self.before)


def test_whatever_happens_every_device_has_one_holder_and_comes_home(node: SimulatedNode) -> None:
    Life.node = node
    run_state_machine_as_test(Life, settings=settings(max_examples=8, stateful_step_count=14, deadline=None))

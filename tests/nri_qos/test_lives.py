"""Random lives of pods, and the plugin process and the runtime that restart between their events."""

import random
import signal

import pytest
from ubproto.nri.v1alpha1 import nri_pb2

from nri_qos import cpulist
from tests.nri_qos.conftest import Plugin, container, pod
from ubsim.runtime import Runtime


class Lives:
    """Random lives of pods on a runtime."""

    def __init__(self, seed: int, runtime: Runtime) -> None:
        self.dice = random.Random(seed)
        self.runtime = runtime
        self.made = 0

    def new_pod(self) -> None:
        self.made += 1
        qos = self.dice.choice(["HLS", "HLS", "HLS", "LS", "BE"])
        self.runtime.run_pod(pod(f"p{self.made}", qos, guaranteed=True))

    def new_container(self) -> None:
        if not self.runtime.pods:
            return
        sandbox = self.runtime.pods[self.dice.choice(list(self.runtime.pods))]
        taken = {each.name for each in self.alive() if each.pod_sandbox_id == sandbox.id}
        if name := self.dice.choice([None, *sorted(set("abc") - taken)]):
            self._create(container(sandbox, name, self.dice.choice([1, 2, 3])))

    def restart_container(self) -> None:
        """The same container again under a new id, as kubelet does; it must find its CPUs again."""
        if not (alive := self.alive()):
            return
        old = self.dice.choice(alive)
        is_own = old.id in exclusive(self.runtime)
        before = old.linux.resources.cpu.cpus
        self.runtime.stop(old.id)
        again = container(self.runtime.pods[old.pod_sandbox_id], old.name, old.linux.resources.cpu.shares.value / 1024)
        self._create(again)
        assert not is_own or self.runtime.containers[again.id].linux.resources.cpu.cpus == before

    def stop_container(self) -> None:
        if alive := self.alive():
            self.runtime.stop(self.dice.choice(alive).id)

    def end_pod(self) -> None:
        if not self.runtime.pods:
            return
        gone = self.dice.choice(list(self.runtime.pods))
        for each in [c.id for c in self.runtime.containers.values() if c.pod_sandbox_id == gone]:
            self.runtime.stop(each)
            self.runtime.remove(each)
        self.runtime.stop_pod(gone)
        self.runtime.remove_pod(gone)

    def alive(self) -> list[nri_pb2.Container]:
        return [c for c in self.runtime.containers.values() if c.state != nri_pb2.CONTAINER_STOPPED]

    def _create(self, asked: nri_pb2.Container) -> None:
        self.made += 1
        asked.id = f"c{self.made}"
        self.runtime.create(asked)
        self.runtime.start(asked.id)


@pytest.mark.parametrize("seed", range(2))
def test_no_cpu_is_handed_out_twice_whatever_restarts(seed: int, runtime: Runtime, plugin: Plugin) -> None:
    """The plugin is killed and the runtime restarted between the events of random lives."""
    lives = Lives(seed, runtime)
    actions = [lives.new_pod, lives.new_container, lives.restart_container, lives.stop_container, lives.end_pod]
    plugin.start()
    runtime.register()
    for step in range(80):
        lives.dice.choice([*actions, lives.new_container, lives.new_container])()
        if step % 20 == 19:
            plugin.stop(signal.SIGKILL)
            plugin.start()
            runtime.register()
        if step % 20 == 9:
            runtime.shut_down()
            runtime.listen()
            runtime.register()
        held = exclusive(runtime)
        taken = [(runtime.containers[a].name, runtime.containers[a].pod_sandbox_id, cpus) for a, cpus in held.items()]
        for name, sandbox, cpus in taken:
            others = [theirs for other, of, theirs in taken if (other, of) != (name, sandbox)]
            assert not cpus & frozenset[int]().union(*others), f"step {step}: {taken}"


def exclusive(runtime: Runtime) -> dict[str, frozenset[int]]:
    """Return the CPUs of running HLS containers that have as many as they asked for."""
    held = {}
    for each in runtime.containers.values():
        qos = runtime.pods[each.pod_sandbox_id].annotations.get("qos.unifiedbus.com/class")
        cpus = cpulist.parse(each.linux.resources.cpu.cpus)
        is_whole = len(cpus) * 1024 == each.linux.resources.cpu.shares.value
        if qos == "HLS" and is_whole and each.state != nri_pb2.CONTAINER_STOPPED:
            held[each.id] = cpus
    return held

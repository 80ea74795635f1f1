"""Keeps the model's picture of CPUs and memory up to date, off the handlers' thread.

A sysfs read that hangs holds this thread only: handlers go on with the last picture, and before the first one they
answer as in doubt.
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from nri_qos import cpulist, observe
from nri_qos.model import Machine
from nri_qos.pools import misfit
from nri_qos.trouble import Trouble
from nri_qos.world import World
from ubhost.roots import Roots

STEPS = 10
_log = logging.getLogger(__name__)


class Watch(threading.Thread):
    def __init__(self, world: World, roots: Roots, wake: Callable[[], None] = lambda: None) -> None:
        super().__init__(name="watch", daemon=True)
        self._world = world
        self._roots = roots
        self._wake = wake  # the loop has something to do
        self._was_read = threading.Event()
        self._trouble = Trouble(_log, "this node's CPUs cannot be read")

    def wait_for_first(self, timeout_s: float) -> bool:
        """Wait for the first picture; return whether it came.

        In steps: the time in which this whole process was kept from running is not time in which sysfs hung.
        """
        return any(self._was_read.wait(timeout_s / STEPS) for _ in range(STEPS))

    def run(self) -> None:
        while True:
            with self._trouble:
                self.look()
            time.sleep(self._world.config.period)

    def look(self) -> None:
        """Read once.

        Raises:
            HostFault: sysfs cannot be read; the last picture stays.
        """
        machine = observe.read_machine(self._roots.sys, self._world.machine)
        is_static = kubelet_is_static(self._roots.root)
        before = self._world.machine
        is_new = before is None or _shape(before) != _shape(machine) or is_static != self._world.kubelet_is_static
        with self._world.locked(to_change=is_new) as world:
            world.machine = machine
            world.kubelet_is_static = is_static
            moved = world.rehome() if is_new else []
        self._was_read.set()
        for member in moved:
            _log.warning(
                "a container got other CPUs of its own, as some went offline",
                extra={"container": member.container.name, "cpus": cpulist.render(member.own_cpus)},
            )
        if is_new:
            nodes = [node.id for node in machine.nodes]
            _log.info(
                "CPUs and NUMA nodes",
                extra={"cpus": cpulist.render(machine.online), "nodes": nodes, "kubelet_is_static": is_static},
            )
            if why := misfit(machine, self._world.config):
                _log.warning("the configuration does not fit this node and is not followed there", extra={"why": why})
            self._wake()


def kubelet_is_static(root: Path) -> bool:
    """Whether kubelet's own CPU manager pins containers: then it, not we, hands out CPUs."""
    try:
        state = json.loads((root / "var/lib/kubelet/cpu_manager_state").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(state, dict) and state.get("policyName") == "static"


def _shape(machine: Machine) -> object:
    """Return what does not change from one second to the next, as the free memory does."""
    return machine.online, machine.isolated, [(node.id, node.cpus, node.memory_total) for node in machine.nodes]

"""What offline work does for memory, in the order of what it costs: reclaim, limits, and the end of a pod.

Short of memory, the kernel is asked to reclaim some of what offline pods have; then their ``memory.high`` is lowered;
at last, and only where that is configured, one pod after another is ended, never an online one. Pods over their budget
of borrowed memory are kept off it. What is decided is in ``memory`` (pure); this reads and does.

Ending a pod means SIGKILL for its containers, as the runtime does when a plugin asks it to evict one; it takes such a
wish only in the answer to a call of its own, so it is done by ``cgroup.kill``. Whether they start again is the
pod's restart policy.

Source: reference/nri.md sections 2.3, 3.1 and 5 (D9, D11, F5); Documentation/admin-guide/cgroup-v2.rst.
"""

import logging
import queue
import threading
from collections import Counter
from collections.abc import Mapping

from nri_qos import memory
from nri_qos.census import Census
from nri_qos.config import RemoteBudget, size
from nri_qos.files import Gone, Hierarchy
from nri_qos.memory import Budget, Over
from nri_qos.model import Machine
from nri_qos.sampler import Sampler
from nri_qos.writer import Writer

BUDGET_ROUNDS = 8  # periods between two looks at borrowed memory
_log = logging.getLogger(__name__)


class Relief:
    def __init__(self, files: Hierarchy, sampler: Sampler, writer: Writer, counts: Counter[tuple[str, ...]]) -> None:
        self.high: Mapping[str, float] = {}  # folder of an offline pod -> bytes
        self.homebound = Over()  # who is kept off borrowed memory
        self.overdrawn = Over()  # who gets no further container
        self._sampler = sampler
        self._writer = writer
        self._reclaimer = Reclaimer(files, writer.counts)
        self._counts = counts
        self._state = memory.State()
        self._period = 0
        self._evicted_at: float | None = None

    def start(self) -> None:
        """Reclaim from now on, unless nothing may be written."""
        if not self._writer.is_dry:
            self._reclaimer.start()

    def turn(self, people: Census, machine: Machine | None, now: float) -> None:
        """See whether offline work has to give memory back; read nothing of it while there is plenty."""
        self._period += 1
        config, offline = people.node.config, people.offline()
        local = [node for node in (machine.nodes if machine else ()) if node.id in people.node.local]
        total = sum(node.memory_total or 0 for node in local)
        available = sum(node.memory_total or 0 if node.memory_free is None else node.memory_free for node in local)
        is_short = available < 2 * config.memory_reserve * total
        used = self._sampler.sizes(offline) if is_short or self._state.high else {}
        can_reclaim = self._writer.capabilities.get("memory.reclaim", False)
        before = self._state
        self._state = memory.decide(available, total, used, before, config.memory_reserve, can_reclaim=can_reclaim)
        self.high = self._state.high
        if before.high.keys() != self.high.keys():
            _log.info("memory of offline pods", extra={"held": sorted(self.high), "available": available})
        self._reclaimer.ask(self._state.reclaim)
        after = config.eviction.after
        if after is not None and self._state.short * config.period >= after:
            self.evict(people, used, "memory", now)
        if self._period % BUDGET_ROUNDS == 0:
            self._weigh_borrowed(people, now)

    def _weigh_borrowed(self, people: Census, now: float) -> None:
        """See who has too much borrowed memory, and end whom it did not help to be kept off it."""
        config, owners = people.node.config, people.owners()
        soft, hard = _budget(config.remote_budget), _budget(config.remote_limit)
        if Budget() == soft == hard:
            return
        by_folder = self._sampler.borrowed(owners, people.node.remote)
        borrowed = {owners[folder]: amount for folder, amount in by_folder.items()}
        before, self.overdrawn = self.overdrawn, memory.over_budget(borrowed, self.overdrawn, hard)
        self.homebound = memory.over_budget(borrowed, self.homebound, memory.lower(soft, hard))
        if self.overdrawn != before:
            _log.warning(
                "borrowed memory over the limit",
                extra={"namespaces": sorted(self.overdrawn.namespaces), "pods": sorted(self.overdrawn.pods)},
            )
        stubborn = {
            folder: amount
            for folder, amount in by_folder.items()
            if self.overdrawn.has(owners[folder]) and before.has(owners[folder])
        }
        if stubborn and config.eviction.after is not None:
            self.evict(people, stubborn, "borrowed memory", now)

    def evict(self, people: Census, used: Mapping[str, int], why: str, now: float) -> None:
        """End the offline pod that has most of ``used`` (bytes by folder), unless one was ended just before."""
        if self._evicted_at is not None and now - self._evicted_at < people.node.config.eviction.every:
            return
        folder = memory.victim(used, people.offline())
        house = next((house for house in people.households if house.folder == folder), None)
        if house is None:
            return
        self._evicted_at = now
        pod = house.sandbox.pod
        _log.warning(
            "an offline pod is ended",
            extra={
                "pod": f"{pod.namespace}/{pod.name}",
                "because": why,
                "bytes": used.get(folder or "", 0),
                "enforced": not self._writer.is_dry,
            },
        )
        self._counts["evicted", why] += 1
        for tenant in house.tenants:
            if tenant.folder is not None:
                self._writer.do(tenant.folder, "cgroup.kill", "1")


def _budget(configured: RemoteBudget) -> Budget:
    return Budget(size(configured.pod), size(configured.namespace))


class Reclaimer(threading.Thread):
    """Writes ``memory.reclaim``, which returns only when the kernel is done: one round at a time, off the loop."""

    def __init__(self, files: Hierarchy, counts: Counter[tuple[str, ...]]) -> None:
        super().__init__(name="reclaim", daemon=True)
        self._files = files
        self._counts = counts
        self._rounds: queue.Queue[Mapping[str, int]] = queue.Queue()
        self._is_busy = False

    def ask(self, wanted: Mapping[str, int]) -> None:
        """Let the kernel reclaim so many bytes of each cgroup; nothing while it still works on an earlier round."""
        if wanted and self.is_alive() and not self._is_busy:
            self._is_busy = True
            self._rounds.put(wanted)

    def run(self) -> None:
        while True:
            for folder, amount in self._rounds.get().items():
                self._reclaim(folder, amount)
            self._is_busy = False

    def _reclaim(self, folder: str, amount: int) -> None:
        self._counts["writes", "memory.reclaim"] += 1
        try:
            self._files.write(folder, "memory.reclaim", str(amount))
        except Gone:
            pass
        except OSError as error:  # EAGAIN: it was less, as there is no more to be had
            _log.debug("reclaimed less", extra={"cgroup": folder, "bytes": amount, "error": str(error)})

"""Listens to the kernel's notices: that they came is believed, what they say is not; the inventory looks again.

Every attachment makes a burst of them. How many looks that may cost is the inventory's to know (``Allowance``).
"""

import logging
import os
import select
import threading

from cni_ub.agent.inventory import Inventory
from ubhost.errors import UbError
from ubhost.roots import Roots
from ubhost.uevents import BACK_STOP_S, Uevents

SETTLE_S = 0.05  # notices come in bursts: one look for all of them

log = logging.getLogger(__name__)


class Hotplug:
    """A ``Service`` of the agent. Without notices changes are found by the inventory's own looks, only later."""

    name = "hot plug"

    def __init__(self, roots: Roots, inventory: Inventory) -> None:
        self._roots = roots
        self._inventory = inventory
        self._stop = -1
        self._thread: threading.Thread | None = None
        self._trouble: str | None = None

    def start(self) -> None:
        wake, self._stop = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, args=(wake,), name=self.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._thread:
            os.close(self._stop)
            self._thread.join()
            self._thread = None

    def ready(self) -> str | None:
        return self._trouble

    def _run(self, wake: int) -> None:
        try:
            with Uevents(self._roots) as uevents:
                self._listen(uevents, wake)
        except UbError as error:
            self._trouble = str(error)
            log.warning("hot plug is noticed late", extra={"why": self._trouble})
        finally:
            os.close(wake)

    def _listen(self, uevents: Uevents, wake: int) -> None:
        while True:
            ready, _, _ = select.select([uevents.fileno(), wake], [], [], BACK_STOP_S)
            if wake in ready:
                return
            batch = uevents.read()
            if batch.events or batch.lost:
                log.debug("notices of the kernel", extra={"count": len(batch.events), "lost": batch.lost})
                if select.select([wake], [], [], SETTLE_S)[0]:
                    return
                self._inventory.wake()

"""Looks between two periods whether online work waits for a CPU, so that a step of its load is not left waiting.

A few files are read a few times a second: those of the online pods with the largest requests, and only while offline
work has something to give. The kernel could call us by itself (PSI triggers), but for less than two seconds it wants
CAP_SYS_RESOURCE and a thread of its own for each cgroup; we do without both.

A short look is noisy, so twice the waiting of a whole period is needed to disturb it.

Source: Linux Documentation/accounting/psi.rst; kernel/sched/psi.c: totals are brought up to date by each read.
"""

import contextlib

from nri_qos import counters
from nri_qos.census import Census
from nri_qos.counters import Counters
from nri_qos.files import Gone, Hierarchy

INTERVAL_S = 0.25
MOST = 8  # pods
FACTOR = 2.0  # of ``pressure`` in the configuration


class Lookout:
    def __init__(self, files: Hierarchy) -> None:
        self._files = files
        self._people: Census | None = None
        self._folders: list[str] = []
        self._last: dict[str, Counters] = {}

    def waiting(self, people: Census, now: float) -> float:
        """Return the worst share of time, of 0 to 1, for which an online pod waited since the last look."""
        if people is not self._people:
            self._people, self._folders = people, _largest(people)
        before, self._last = self._last, {}
        worst = 0.0
        for folder in self._folders:
            with contextlib.suppress(Gone):
                self._last[folder] = counters.read(self._files.read, folder, now)
                worst = max(worst, counters.rates(before.get(folder), self._last[folder]).waiting or 0.0)
        return worst

    def rest(self) -> None:
        """Forget the last look: the next one is the first of a series."""
        self._last = {}


def _largest(people: Census) -> list[str]:
    """Return the folders of the online pods that can be disturbed, those with the largest requests."""
    online = [house for house in people.households if house.qos.is_online and house.shares_cpus]
    online.sort(key=lambda house: (-house.request, house.folder or ""))
    return [house.folder for house in online if house.folder is not None][:MOST]

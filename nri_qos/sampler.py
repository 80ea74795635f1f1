"""Reads what the loop needs to know of cgroups, and no more than that.

On a node with many pods, one that is quiet is read only in its turn: when it awakes in between, its use is part of
what the whole node uses, and so of the need.

Source: reference/nri.md sections 2.3, 5 (F1, F9, F10).
"""

import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nri_qos import counters
from nri_qos.counters import Counters, Rates
from nri_qos.files import Gone, Hierarchy
from ubhost import quantity
from ubhost.errors import HostFault

QUIET = 0.01  # CPUs: a pod that uses less is quiet
FEW = 128  # cgroups that are all read in every period
QUIET_ROUNDS = 8  # periods between two readings of a quiet pod
LISTED_PERIODS = 30  # for which a list of cgroups is good, where there are many
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """One period."""

    rates: Mapping[str, Rates]  # by folder; what is gone is missing
    fresh: frozenset[str]  # folders that were read for the first time
    total: float | None  # CPUs that the whole node uses
    is_first: bool  # there was no reading before, so nothing has a rate


class Sampler:
    def __init__(self, files: Hierarchy) -> None:
        self._files = files
        self._last: dict[str, Counters] = {}
        self._rates: dict[str, Rates] = {}
        self._node: Counters | None = None
        self._has_total = False
        self._period = 0
        self._listed: dict[str, tuple[int, list[str]]] = {}  # folder -> (period, cgroups in it)

    def sample(self, folders: list[str], now: float) -> Sample:
        """Read ``folders`` at ``now`` (seconds, monotonic) and return what changed since the last time.

        Raises:
            HostFault: the hierarchy itself is gone.
        """
        self._period += 1
        before, known, self._last, rates = self._last, self._rates, {}, dict[str, Rates]()
        for folder in folders:
            if folder in known and not self._is_worth_reading(folder, known[folder], len(folders)):
                self._last[folder], rates[folder] = before[folder], known[folder]
                continue
            with contextlib.suppress(Gone):
                self._last[folder] = counters.read(self._files.read, folder, now)
                rates[folder] = counters.rates(before.get(folder), self._last[folder])
        node, self._node = self._node, self._read_node(now)
        self._rates = rates
        return Sample(rates, frozenset(rates.keys() - before.keys()), self._total(node), node is None)

    def sizes(self, folders: Iterable[str]) -> dict[str, int]:
        """Return the memory in bytes of ``folders``; what cannot be read is missing."""
        sizes = {}
        for folder in folders:
            with contextlib.suppress(Gone, OSError):
                size = quantity.number(self._files.read(folder, "memory.current"))
                if size is not None:
                    sizes[folder] = size
        return sizes

    def borrowed(self, folders: Iterable[str], remote: frozenset[int]) -> dict[str, int]:
        """Return the bytes of ``folders`` on NUMA nodes ``remote``; what cannot be read is missing."""
        sizes = {}
        for folder in folders:
            with contextlib.suppress(Gone, OSError):
                by_node = counters.memory_by_node(self._files.read(folder, "memory.numa_stat"))
                sizes[folder] = sum(amount for node, amount in by_node.items() if node in remote)
        return sizes

    def children(self, folder: str) -> list[str]:
        """Return the cgroups in ``folder``; where there are many, as they were at most thirty periods ago."""
        known = self._listed.get(folder)
        if known is None or self._period >= known[0] + LISTED_PERIODS or len(self._last) <= FEW:
            known = self._listed[folder] = self._period, self._files.children(folder)
        return known[1]

    def forget_lists(self, folders: Iterable[str]) -> None:
        """Keep the lists of ``folders`` only."""
        kept = set(folders)
        self._listed = {folder: listed for folder, listed in self._listed.items() if folder in kept}

    def _is_worth_reading(self, folder: str, rates: Rates, count: int) -> bool:
        if count <= FEW:
            return True
        is_quiet = rates.usage is not None and rates.usage < QUIET and not rates.waiting and not rates.is_throttled
        return not is_quiet or (hash(folder) + self._period) % QUIET_ROUNDS == 0

    def _read_node(self, now: float) -> Counters:
        """Read what the whole node uses; on a tree without a root ``cpu.stat``, what its topmost cgroups use."""
        reading = self._read_use("", now)
        if reading is None:
            raise HostFault("the root of the cgroup hierarchy is gone")
        if reading.usage is not None:
            return reading
        tops = [self._read_use(top, now) for top in self._files.children("")]
        known = [top.usage for top in tops if top is not None and top.usage is not None]
        return Counters(now, sum(known) if known else None)

    def _read_use(self, folder: str, now: float) -> Counters | None:
        with contextlib.suppress(Gone):
            return counters.read(self._files.read, folder, now, with_pressure=False)
        return None

    def _total(self, before: Counters | None) -> float | None:
        """Return the use of the whole node; that of the pods where the tree has never told any other."""
        assert self._node is not None
        if not self._has_total and self._node.usage is None:
            if before is None:
                _log.warning("the tree does not tell what the whole node uses: only pods are counted")
            return sum(rates.usage or 0.0 for rates in self._rates.values())
        self._has_total = True
        return counters.rates(before, self._node).usage

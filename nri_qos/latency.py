"""How long handlers take, as a histogram for each call."""

import threading
from bisect import bisect_left

BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


class Latencies:
    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._totals: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, method: str, seconds: float) -> None:
        with self._lock:
            counts = self._counts.setdefault(method, [0] * (len(BOUNDS_S) + 1))
            counts[bisect_left(BOUNDS_S, seconds)] += 1
            self._totals[method] = self._totals.get(method, 0.0) + seconds

    def snapshot(self) -> dict[str, tuple[list[int], float]]:
        """Return for each method how many took at most each bound, and all (the last), and the sum in seconds."""
        with self._lock:
            return {
                method: ([sum(counts[: at + 1]) for at in range(len(counts))], self._totals[method])
                for method, counts in self._counts.items()
            }

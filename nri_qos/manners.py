"""Our own threads keep off the CPUs that are a container's own: nobody else must run there, and neither must we.

Source: sched_setaffinity(2), which is per thread; threads that are made later inherit it.
"""

import contextlib
import os
from pathlib import Path


class Manners:
    """``allowed`` is where we may run at all: what we were started with."""

    def __init__(self) -> None:
        self._allowed = frozenset(os.sched_getaffinity(0))
        self._avoided = frozenset[int]()

    def keep_off(self, cpus: frozenset[int]) -> None:
        """Let no thread of ours run on ``cpus``, as long as there is another CPU."""
        if cpus == self._avoided:
            return
        self._avoided = cpus
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it has just ended
                os.sched_setaffinity(int(thread.name), self._allowed - cpus or self._allowed)

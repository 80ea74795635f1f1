"""Reads the counters of cgroups, and makes rates of two readings.

A counter that cannot be read, or that went backwards, has no rate: ``None``, never 0.

Source: Linux Documentation/admin-guide/cgroup-v2.rst, "cpu.stat"; Documentation/accounting/psi.rst.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ubhost import quantity

Read = Callable[[str, str], str]
"""Returns what a file of a cgroup says; raises OSError or ``writer.Gone``."""


@dataclass(frozen=True, slots=True)
class Counters:
    """One reading. Microseconds since the cgroup was made; ``None`` where the kernel tells nothing."""

    at: float  # seconds, monotonic
    usage: int | None = None
    throttled: int | None = None  # summed over CPUs
    throttles: int | None = None  # how often
    waited: int | None = None  # time in which some task waited for a CPU


@dataclass(frozen=True, slots=True)
class Rates:
    """Between two readings. CPUs used; shares of time from 0 to 1."""

    usage: float | None = None
    waiting: float | None = None  # for a CPU, other than by its own limit
    is_throttled: bool = False


def read(read_file: Read, cgroup: str, now: float, *, with_pressure: bool = True) -> Counters:
    """Return the counters of ``cgroup`` at ``now``; what cannot be read is ``None``.

    Raises:
        Gone: the cgroup is not there.
    """
    stat = fields(_text(read_file, cgroup, "cpu.stat"))
    return Counters(
        now,
        stat.get("usage_usec"),
        stat.get("throttled_usec"),
        stat.get("nr_throttled"),
        _waited(_text(read_file, cgroup, "cpu.pressure")) if with_pressure else None,
    )


def rates(before: Counters | None, after: Counters) -> Rates:
    """Return the rates between two readings; nothing is known of the first."""
    if before is None or after.at <= before.at:
        return Rates()
    micros = (after.at - before.at) * 1e6
    usage = _rise(before.usage, after.usage)
    throttled = _rise(before.throttled, after.throttled) or 0
    waited = _rise(before.waited, after.waited)
    return Rates(
        usage=None if usage is None else usage / micros,
        waiting=None if waited is None else min(max(waited - throttled, 0) / micros, 1.0),
        is_throttled=bool(_rise(before.throttles, after.throttles)),
    )


def _rise(before: int | None, after: int | None) -> int | None:
    if before is None or after is None or after < before:
        return None
    return after - before


def _text(read_file: Read, cgroup: str, file: str) -> str:
    try:
        return read_file(cgroup, file)
    except OSError:
        return ""


def fields(text: str) -> dict[str, int]:
    """Return the numbers of a file with lines such as ``usage_usec 123``."""
    found = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if (number := quantity.number(value)) is not None:
            found[key] = number
    return found


def _waited(text: str) -> int | None:
    """Return the total of the "some" line: ``some avg10=0.00 avg60=0.00 avg300=0.00 total=123``."""
    for line in text.splitlines():
        if line.startswith("some "):
            return quantity.number(line.rpartition("total=")[2])
    return None


def memory_by_node(numa_stat: str) -> dict[int, int]:
    """Return the bytes on each NUMA node, of ``memory.numa_stat``: ``anon N0=4096 N2=0`` and so on.

    Nodes come and go, so the columns are not the same from one time to the next. cgroup v2 counts bytes.
    """
    found: dict[int, int] = {}
    for line in numa_stat.splitlines():
        kind, *columns = line.split()
        if kind not in ("anon", "file"):  # shmem is part of file
            continue
        for column in columns:
            name, _, text = column.partition("=")
            node, size = quantity.number(name[1:]), quantity.number(text)
            if name[:1] == "N" and node is not None and size is not None:
                found[node] = found.get(node, 0) + size
    return found

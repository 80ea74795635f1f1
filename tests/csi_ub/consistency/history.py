"""Judge a history of one register: was it linearizable? Pure, O(n log n).

Every written value is unique. Then a history is linearizable if and only if its zones are in order (Gibbons and
Korach, "Testing shared memories", 1997, theorem 4.2): the zone of a value spans from the earliest end (f) to the
latest start (s) of its write and its reads. It is forward if f < s: during all of it the register held that value; so
no two forward zones overlap. Otherwise it is backward, and must not lie wholly inside the forward zone of another
value. A write that failed may have happened at any time after its start, or not at all.
"""

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

INITIAL = 0  # the value of a fresh register
_NEVER = float("inf")


@dataclass(frozen=True, slots=True, order=True)
class Operation:
    """One write or read of ``value``; times in nanoseconds of one clock. ``end`` is infinite if it failed."""

    start: float
    end: float
    value: int
    is_write: bool
    by: str = ""


@dataclass(frozen=True, slots=True)
class Violation:
    """What cannot be, and the operations that show it."""

    why: str
    shown_by: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class _Zone:
    value: int
    low: float
    high: float
    is_forward: bool


def violations(history: Iterable[Operation]) -> Iterator[Violation]:
    """Yield what is wrong with a history; nothing, if it is linearizable."""
    by_value: dict[int, list[Operation]] = defaultdict(list)
    for operation in history:
        by_value[operation.value].append(operation)
    by_value[INITIAL].append(Operation(-_NEVER, -_NEVER, INITIAL, is_write=True))
    zones = []
    for value, operations in by_value.items():
        writes = [each for each in operations if each.is_write]
        reads = [each for each in operations if not each.is_write]
        if not writes:
            yield Violation(f"{value} was read, but nobody wrote it", tuple(reads[:1]))
            continue
        early = [read for read in reads if read.end < writes[0].start]
        if early:
            yield Violation(f"{value} was read before it was written", (early[0], writes[0]))
        if reads or writes[0].end != _NEVER:
            zones.append(_zone(value, operations))
    yield from _conflicts(zones, by_value)


def _zone(value: int, operations: list[Operation]) -> _Zone:
    first_end = min(each.end for each in operations)
    last_start = max(each.start for each in operations)
    return _Zone(value, min(first_end, last_start), max(first_end, last_start), first_end < last_start)


def _conflicts(zones: list[_Zone], by_value: dict[int, list[Operation]]) -> Iterator[Violation]:
    forward = sorted((zone for zone in zones if zone.is_forward), key=lambda zone: zone.low)
    for one, two in itertools.pairwise(forward):
        if two.low < one.high:
            shown = _evidence(one, by_value) + _evidence(two, by_value)
            yield Violation(f"the register held {one.value} and {two.value} at once", shown)
    lows = [zone.low for zone in forward]
    for zone in zones:
        if zone.is_forward:
            continue
        around = bisect.bisect_left(lows, zone.low) - 1
        if around >= 0 and forward[around].low < zone.low and zone.high < forward[around].high:
            other = forward[around]
            yield Violation(
                f"{zone.value} was written while the register held {other.value} all the time",
                _evidence(other, by_value) + _evidence(zone, by_value),
            )


def _evidence(zone: _Zone, by_value: dict[int, list[Operation]]) -> tuple[Operation, ...]:
    """Return the two operations that make the zone what it is."""
    operations = by_value[zone.value]
    first = min(operations, key=lambda each: each.end)
    last = max(operations, key=lambda each: each.start)
    return (first,) if first == last else (first, last)

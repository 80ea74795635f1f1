"""How much CPU offline work may use in the next period. Pure: numbers in, numbers out.

    need    = 1.25 * recent use of online work + use of everything else
    target  = threshold * CPUs - need, at least the floor
    online work waits or is throttled  -> at once half of what it was, or the target if that is less
    target below what it was           -> at once the target
    target above it by more than 2 %   -> after three such periods in a row, a tenth of the node a period

"CPUs" are those that are nobody's own. What cannot be measured counts as need: the last figure for three periods, then
everything. All numbers are CPUs (1.0 is one CPU), unless said otherwise.

Source: reference/nri.md section 2.3, which draws on koordlet, volcano, rubik and katalyst.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

MARGIN = 1.25  # online work may grow by so much within a period
DECAY = 0.5  # weight of the newest figure when use falls; when it rises, it counts at once
DEAD_BAND = 0.02  # share of the CPUs: a smaller change is noise
CALM_PERIODS = 3  # with room to grow, before growing
GROWTH = 0.1  # share of the CPUs that offline work may gain in a period
LEAST_STEP = 0.1  # CPUs gained in a period at least, so that small machines come back too
PATIENCE = 3  # periods for which the last figure stands in for a missing one
INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the configuration says."""

    floor: float = 1.0  # CPUs that offline work always keeps
    threshold: float = 0.75  # share of the CPUs that may be used in all
    pressure: float = 0.1  # share of time that online work may wait for a CPU
    is_throttling_pressure: bool = True


@dataclass(frozen=True, slots=True)
class Observed:
    """One period. ``room`` and ``size`` count CPUs by NUMA node, ``online`` is use by node as far as it is bound.

    ``None`` stands for what could not be measured.
    """

    size: Mapping[int, int]  # CPUs that are nobody's own
    room: Mapping[int, int]  # of them, those that offline work may use at all
    online: float | None = 0.0  # CPUs used by online pods, on CPUs that are nobody's own
    other: float | None = 0.0  # by everything else that is not offline
    bound: Mapping[int, float] = field(default_factory=dict)  # part of ``online`` that is bound to a node
    pressure: float = 0.0  # worst share of time in which an online pod had to wait, 0 to 1
    is_throttled: bool = False  # an online pod ran into its own limit


@dataclass(frozen=True, slots=True)
class State:
    """What one period leaves to the next. ``quota`` is ``None`` before the first."""

    quota: float | None = None
    nodes: Mapping[int, float] = field(default_factory=dict)  # share of the quota by NUMA node
    online: float = 0.0  # smoothed
    calm: int = 0  # periods in a row with room to grow
    missing: int = 0  # periods in a row without figures
    last_online: float = 0.0
    last_other: float = 0.0
    reason: str = "start"


def decide(observed: Observed, state: State, limits: Limits) -> State:
    """Return the new state; its ``quota`` is within the floor and the room, whatever was observed."""
    state, online, other = _figures(observed, state)
    capacity = sum(observed.size.values())
    room = float(sum(observed.room.values()))
    floor = min(limits.floor, room)
    smoothed = online if online >= state.online else DECAY * online + (1 - DECAY) * state.online
    target = limits.threshold * capacity - MARGIN * smoothed - other
    if state.missing > PATIENCE:
        target = floor
    target = _clamp(target, floor, room)
    state = replace(state, online=smoothed, nodes=_by_node(observed, limits, online, other))
    return _move(observed, state, limits, target, floor, room, capacity)


def share(
    quota: float,
    used: Mapping[str, float],
    given: Mapping[str, float],
    most: Mapping[str, float] = MappingProxyType({}),
    least: float = 0.05,
) -> dict[str, float]:
    """Divide ``quota`` among offline pods that used so much with so much given; return CPUs for each.

    Who uses little leaves the rest to the others; who ran into its share may want any amount, up to ``most``, which is
    its own limit. What nobody wants is spread evenly, so that an idle pod can start at once. Each gets ``least``, even
    if that is more in all.
    """
    wants = {
        pod: most.get(pod, INFINITE) if cpus >= 0.8 * given.get(pod, 0.0) else max(1.5 * cpus, least)
        for pod, cpus in used.items()
    }
    shares: dict[str, float] = {}
    left = quota
    for number, pod in enumerate(sorted(wants, key=lambda pod: (wants[pod], pod))):
        shares[pod] = min(wants[pod], left / (len(wants) - number))
        left -= shares[pod]
    return {pod: min(max(cpus + left / len(shares), least), most.get(pod, INFINITE)) for pod, cpus in shares.items()}


def settled(shares: Mapping[str, float], given: Mapping[str, float], capacity: float) -> dict[str, float]:
    """Return ``shares``, with those that hardly differ from what was given left as they are: each is a write."""
    noise = 0.01 * capacity / (len(shares) or 1)
    return {
        pod: given[pod] if pod in given and abs(cpus - given[pod]) <= max(0.02 * given[pod], noise) else cpus
        for pod, cpus in shares.items()
    }


def spread(quota: float, nodes: Mapping[int, float], room: Mapping[int, int]) -> dict[int, int]:
    """Return how many whole CPUs of each NUMA node hold ``quota``: in the shares of ``nodes``, within ``room``."""
    count = min(max(1, -int(-quota // 1)), sum(room.values()))
    weights = {node: max(nodes.get(node, 0.0), 1e-9) for node, cpus in room.items() if cpus}
    given = dict.fromkeys(weights, 0)
    for _ in range(count):
        open_ = [node for node in weights if given[node] < room[node]]
        best = min(open_, key=lambda node: ((given[node] + 1) / weights[node], node))
        given[best] += 1
    return given


def _figures(observed: Observed, state: State) -> tuple[State, float, float]:
    """Return use by online work and by others, with the last figures in place of missing ones."""
    if observed.online is None or observed.other is None:
        state = replace(state, missing=state.missing + 1)
    else:
        state = replace(state, missing=0)
    online = state.last_online if observed.online is None else max(observed.online, 0.0)
    other = state.last_other if observed.other is None else max(observed.other, 0.0)
    return replace(state, last_online=online, last_other=other), online, other


def _by_node(observed: Observed, limits: Limits, online: float, other: float) -> dict[int, float]:
    """Return what is left on each node: its own bound use, and its part of the use that is bound to none."""
    capacity = sum(observed.size.values()) or 1
    loose = max(online - sum(observed.bound.values()), 0.0)
    return {
        node: _clamp(
            limits.threshold * cpus
            - MARGIN * (observed.bound.get(node, 0.0) + loose * cpus / capacity)
            - other * cpus / capacity,
            0.0,
            observed.room.get(node, 0),
        )
        for node, cpus in observed.size.items()
    }


def _move(
    observed: Observed, state: State, limits: Limits, target: float, floor: float, room: float, capacity: int
) -> State:
    if state.quota is None:
        return replace(state, quota=target, calm=0, reason="start")
    quota = _clamp(state.quota, floor, room)
    if observed.pressure > limits.pressure or (observed.is_throttled and limits.is_throttling_pressure):
        reason = "online work waits" if observed.pressure > limits.pressure else "online work is throttled"
        return replace(state, quota=max(floor, min(target, quota / 2)), calm=0, reason=reason)
    if target < quota:
        reason = "no figures" if state.missing > PATIENCE else "online work needs more"
        return replace(state, quota=target, calm=0, reason=reason)
    if target <= quota + DEAD_BAND * capacity or state.missing:
        return replace(state, quota=quota, calm=0, reason="steady")
    if state.calm + 1 < CALM_PERIODS:
        return replace(state, quota=quota, calm=state.calm + 1, reason="room to grow, not long enough")
    grown = min(target, quota + max(GROWTH * capacity, LEAST_STEP))
    return replace(state, quota=grown, calm=state.calm + 1, reason="grows")


def _clamp(value: float, low: float, high: float) -> float:
    return max(low, min(value, high))

"""What one period showed, as the squeeze wants it. Pure.

Only CPUs that are nobody's own count, and so does only the use of those: a container with CPUs of its own neither needs
the others nor can it be disturbed by who runs there.
"""

from collections.abc import Collection, Iterable, Mapping

from nri_qos.census import Census
from nri_qos.counters import Rates
from nri_qos.model import QosClass
from nri_qos.squeeze import Observed

NOTHING = Rates()


def observe(census: Census, rates: Mapping[str, Rates], total: float | None, fresh: Collection[str]) -> Observed:
    """Return what a period showed.

    Args:
        census: who runs.
        rates: by folder of a pod or of a container with CPUs of its own; a folder that is gone is missing.
        total: CPUs used by the whole node.
        fresh: folders that were read for the first time; their pods count with what they request.
    """
    node = census.node
    online: list[float | None] = []
    offline: list[float | None] = []
    pinned: list[float] = []
    bound: dict[int, float] = {}
    seen = [(house, rates[house.folder]) for house in census.households if house.folder and house.folder in rates]
    for house, rate in seen:
        usage = house.request if house.folder in fresh else rate.usage
        if house.qos is QosClass.BE:
            offline.append(usage)
            continue
        own = sum(rates.get(folder, NOTHING).usage or 0.0 for folder in house.pinned)
        loose = None if usage is None else max(usage - own, 0.0)
        pinned.append(own)
        online.append(loose)
        for numa in house.bound:
            bound[numa] = bound.get(numa, 0.0) + (loose or 0.0)
    waiting = [rate for house, rate in seen if house.qos.is_online and house.shares_cpus]
    common = node.pool - node.exclusive
    used = _sum(online)
    return Observed(
        size={numa.id: len(common.intersection(numa.cpus)) for numa in node.machine.nodes},
        room={numa.id: len(node.offline_room.intersection(numa.cpus)) for numa in node.machine.nodes},
        online=used,
        other=_rest(total, _sum(offline), used, sum(pinned)),
        bound=bound,
        pressure=max((rate.waiting or 0.0 for rate in waiting), default=0.0),
        is_throttled=any(rate.is_throttled for rate in waiting),
    )


def _rest(total: float | None, offline: float | None, online: float | None, pinned: float) -> float | None:
    if total is None or offline is None or online is None:
        return None
    return max(total - offline - online - pinned, 0.0)


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum; ``None`` if one is not known."""
    result = 0.0
    for value in values:
        if value is None:
            return None
        result += value
    return result

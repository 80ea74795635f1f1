"""Which of the free devices a container should get: close together first, then apart on the fabric. Pure.

Devices of one NUMA node are preferred to devices of several, within that devices of one IO die; among those the ones
whose planes are used least, so that the container's traffic spreads. Where a group must be opened, the smallest one
that is large enough is, so that large groups stay whole for those who need them.

Source: design section 6; kubelet calls GetPreferredAllocation with what its topology manager left over.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cni_ub.agent import deviceid
from ubhost.errors import InvalidRequest

Group = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a device sits. ``None`` is unknown; planes are the independent networks that its ports are cabled to."""

    numa: int | None = None
    die: str | None = None
    planes: tuple[int, ...] = ()


def prefer(available: Collection[str], must: Sequence[str], size: int, places: Mapping[str, Place]) -> tuple[str, ...]:
    """Return ``size`` of ``available``, those of ``must`` first.

    Args:
        places: by name of the device; ids of shared devices are looked up by the device behind them.

    Raises:
        InvalidRequest: there are fewer than ``size``, or ``must`` holds more than that.
    """
    if len(set(must)) > size or len({*available, *must}) < size:
        raise InvalidRequest(f"{size} devices cannot be chosen of {len(set(available))}, {len(set(must))} being fixed")

    def place(id_: str) -> Place:
        return places.get(deviceid.device_of(id_), Place())

    def numa(id_: str) -> object:
        return place(id_).numa

    def die(id_: str) -> object:
        return place(id_).numa, place(id_).die

    chosen = list(dict.fromkeys(must))
    free = sorted(set(available) - set(chosen), key=natural)
    for group in _groups(free, chosen, size - len(chosen), numa, within=die):
        for subgroup in _groups(group, chosen, size - len(chosen), die, within=die):
            _spread(subgroup, chosen, size, place)
    return tuple(chosen)


def natural(id_: str) -> tuple[tuple[str, int], ...]:
    """Sort key: ``urma_2`` before ``urma_10``."""
    return tuple((text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", id_))


def _groups(
    free: Iterable[str], chosen: Sequence[str], need: int, group_of: Group, *, within: Group
) -> list[list[str]]:
    """Return the groups to fill, in order: those already begun, then as few others as possible.

    Of groups that are large enough, the one with the fewest groups ``within`` is taken, then the smallest.
    """
    members = _by(group_of, free)
    begun = set(map(group_of, chosen))
    order = [members.pop(group) for group in list(members) if group in begun]
    order.sort(key=len, reverse=True)
    need -= sum(map(len, order))
    rest = sorted(members.values(), key=len)
    while rest and need > 0:
        large = [group for group in rest if len(group) >= need]
        best = min(large, key=lambda group: (_touched(group, need, within), len(group))) if large else rest[-1]
        rest.remove(best)
        order.append(best)
        need -= len(best)
    return order


def _touched(group: Iterable[str], need: int, within: Group) -> int:
    """Return how many groups ``within`` it takes to serve ``need``, the largest first."""
    sizes = sorted(map(len, _by(within, group).values()), reverse=True)
    return next((count for count in range(1, len(sizes)) if sum(sizes[:count]) >= need), len(sizes))


def _by(group_of: Group, ids: Iterable[str]) -> dict[object, list[str]]:
    members: dict[object, list[str]] = {}
    for id_ in ids:
        members.setdefault(group_of(id_), []).append(id_)
    return members


def _spread(group: Iterable[str], chosen: list[str], size: int, place: Callable[[str], Place]) -> None:
    """Move ids from ``group`` to ``chosen`` until there are ``size``, the least used planes and devices first."""
    left = list(group)
    planes = Counter(plane for id_ in chosen for plane in place(id_).planes)
    devices = Counter(map(deviceid.device_of, chosen))
    while left and len(chosen) < size:
        best = min(left, key=lambda id_: (devices[deviceid.device_of(id_)], sum(planes[p] for p in place(id_).planes)))
        left.remove(best)
        chosen.append(best)
        planes.update(place(best).planes)
        devices[deviceid.device_of(best)] += 1

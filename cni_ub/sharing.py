"""A device that several pods have at a time (``isolation: shared``). Pure.

Every EID is in one network namespace, and a program may use only those in its own: so the pods that share a device
are kept apart by their EIDs. Each gets one of every kernel device of it that has one left; there is one of the
bonding device, which the first gets. What is of the device as a whole, its netdev, its bandwidth and its service
levels, cannot be given to many: the netdev is the first one's that wants it, the others are refused.

Source: reference/ub.md section 3.
"""

import time
from collections.abc import Iterable
from dataclasses import replace

from cni_ub.protocol import Qos
from ubhost.errors import Conflict, Exhausted, InvalidRequest
from ubhost.provider import Device, EidSlot
from ubhost.record import Record


def refuse_strangers(device: str, others: Iterable[Record], container: str, *, is_shared: bool) -> None:
    """Refuse a device that others have, unless all of them agreed to share it.

    Raises:
        Conflict: one of them has it for itself, or would have it taken for itself by us; or it is our own pod.
    """
    for other in others:
        if other.container == container:
            raise Conflict(f"{container} has {device} as {other.ifname} already; a pod has a device once")
        if not (is_shared and other.is_shared):
            alone = "; it is shared: ask for isolation shared" if other.is_shared else ""
            raise Conflict(f"{device} belongs to {owner_of(other)} since {time.ctime(other.since)}{alone}")


def share_of(device: Device, others: Iterable[Record]) -> Device:
    """Return the device with the EIDs that the next pod gets.

    Raises:
        Exhausted: none is left.
    """
    others = tuple(others)
    given = {(member, index) for other in others for member, index, _ in other.eids}
    left: dict[str, EidSlot] = {}
    for slot in device.eids:
        if not slot.eid.is_zero and (slot.device, slot.index) not in given:
            left.setdefault(slot.device, slot)
    if not left:
        by = "; ".join(map(owner_of, others)) or "no attachment of ours"
        raise Exhausted(f"{device.id} has no EID left for another pod; it is shared by {by}")
    return replace(device, eids=tuple(left.values()))


def refuse_for_many(device: str, qos: Qos) -> None:
    """Refuse what one of many pods may not change for all.

    Raises:
        InvalidRequest: a limit or a service level of the device was asked for.
    """
    asked = {"minMbps/maxMbps": qos.bandwidth, "serviceLevel": qos.service_level}
    for key, value in asked.items():
        if value is not None:
            raise InvalidRequest(f"qos.{key} is about all of {device}, which isolation shared gives to others too")


def owner_of(record: Record) -> str:
    return f"container {record.container} ({record.pod or 'no pod name'}) as {record.ifname}"

"""Decide how an attachment is taken back. Pure, as ``cni_ub.plan`` is, whose marks it reads."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cni_ub.plan import Seen, read_mark
from cni_ub.steps import (
    Address,
    Altname,
    DetachXdp,
    Expose,
    Limit,
    LimitReceiving,
    Move,
    MoveEids,
    Rename,
    SetAlias,
    SetAllmulti,
    SetGroup,
    SetMac,
    SetMtu,
    SetPromisc,
    SetQlen,
    SetServiceLevel,
    SetUp,
    Side,
    Step,
)
from ubhost.model import Interface, Link
from ubhost.provider import Bandwidth, EidSlot
from ubhost.record import OriginalLink


@dataclass(frozen=True, slots=True)
class Held:
    """What an attachment took, as far as it is known: from its record, or from the mark and the provider.

    ``members`` are the kernel devices to take out of the pod, and their EIDs come back with them; ``eids`` all that
    were given. ``netdev`` is the device's netdev as the provider knows it, for when record and ``link`` are lost.
    """

    device: str
    members: tuple[str, ...] = ()
    eids: tuple[EidSlot, ...] = ()
    link: OriginalLink | None = None
    netdev: str = ""
    limit: Bandwidth | None = None
    service_levels: tuple[SetServiceLevel, ...] = ()  # that put back what they were
    shaper: str = ""
    addresses: tuple[Interface, ...] = field(default=())


class DeviceRelease(NamedTuple):
    """How to take the device out of the pod: each group is done as far as it goes, whatever becomes of the other."""

    device: tuple[Step, ...] = ()  # and its EIDs
    limits: tuple[Step, ...] = ()  # and service levels


class LinkRelease(NamedTuple):
    """How to bring the link home as it was; ``quiet`` silences it at once, so that its addresses can go to others."""

    quiet: tuple[Step, ...] = ()
    home: tuple[Step, ...] = ()


def plan_device_release(held: Held, seen: Seen) -> DeviceRelease:
    """Return what gives the device back as it was before ADD. A thing that is gone plans nothing."""
    shown = tuple(member for member in held.members if member in seen.exposed)
    hide = [Expose(shown, present=False)] if shown else []
    left = tuple(slot for slot in held.eids if slot in seen.eids and slot.device not in held.members)
    back = [MoveEids(left, Side.HOST)] if left else []
    limits = [Limit(held.device, held.limit, seen.bandwidth)] if held.limit not in (None, seen.bandwidth) else []
    return DeviceRelease((*hide, *back), (*limits, *held.service_levels))


def plan_link_release(held: Held, seen: Seen) -> LinkRelease:
    """Return what brings the netdev home as it was before ADD. A thing that is gone plans nothing."""
    down = [SetUp(Side.POD, seen.pod.name, up=False)] if seen.pod and seen.pod.is_up else []
    freed = [LimitReceiving(seen.pod.name if seen.pod else "", held.shaper, None, None)] if seen.has_shaper else []
    return LinkRelease((*down, *freed), _plan_home(held, seen))


def _plan_home(held: Held, seen: Seen) -> tuple[Step, ...]:
    link = seen.pod or seen.host
    if link is None:
        return ()
    original = held.link or _from_mark(link)
    if original is None:
        return ()
    steps: list[Step] = []
    side = Side.POD if seen.pod else Side.HOST
    name = original.name if original.name not in seen.host_names else fallback_name(link)
    # The pod's own alternative names stay behind: one may be the name of another device. udev adds old names too.
    foreign = [alt for alt in link.altnames if alt not in original.altnames or alt in seen.host_names]
    steps += [Altname(side, link.name, alt, present=False) for alt in foreign]
    link = replace(link, altnames=tuple(alt for alt in link.altnames if alt not in foreign))
    if seen.pod:
        steps.append(Move(Side.POD, link.name, Side.HOST, name))
        link = replace(link, name=name, is_up=False)
    elif link.name != name and name == original.name:
        steps += [SetUp(Side.HOST, link.name, up=False)] if link.is_up else []
        steps.append(Rename(Side.HOST, link.name, name))
        link = replace(link, name=name, is_up=False)
    return (*steps, *_plan_attributes(original, link, held, seen))


def _plan_attributes(original: OriginalLink, link: Link, held: Held, seen: Seen) -> tuple[Step, ...]:
    at, name = Side.HOST, link.name
    steps: list[Step] = []
    if link.mac != original.mac and original.mac:
        steps.append(SetMac(at, name, original.mac, link.mac))
    if link.mtu != original.mtu and original.mtu:
        steps.append(SetMtu(at, name, original.mtu, link.mtu))
    if link.qlen != original.qlen:
        steps.append(SetQlen(at, name, original.qlen, link.qlen))
    if link.group != original.group:
        steps.append(SetGroup(at, name, original.group, link.group))
    if link.is_promisc != original.is_promisc:
        steps.append(SetPromisc(at, name, original.is_promisc))
    if link.is_allmulti != original.is_allmulti:
        steps.append(SetAllmulti(at, name, original.is_allmulti))
    if link.has_xdp and not original.has_xdp:
        steps.append(DetachXdp(at, name))
    lost = [alt for alt in original.altnames if alt not in link.altnames and alt not in seen.host_names]
    steps += [Altname(at, name, alt, present=True) for alt in lost if alt not in (name, original.pod_name)]
    if original.is_up and not link.is_up:
        steps.append(SetUp(at, name, up=True))
    present = seen.addresses if seen.host else ()
    steps += [Address(at, name, address, present=True) for address in held.addresses if address not in present]
    if link.alias != original.alias:  # last: while it is marked, the work is not finished
        steps.append(SetAlias(at, name, original.alias, link.alias))
    return tuple(steps)


def _from_mark(link: Link) -> OriginalLink | None:
    """Rebuild what we can when the record is lost: the link itself says its name and alias, hardware its address."""
    found = read_mark(link.alias)
    if found is None:
        return None
    return OriginalLink(found.name, link.index, 0, link.permanent_mac, found.alias, link.qlen, is_up=False)


def fallback_name(link: Link) -> str:
    """The name of a link that came home while another one has its name."""
    return f"ubcni{link.index}"

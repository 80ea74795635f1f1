"""Decide what ADD and DEL must do. Pure: no file, socket or system call is touched here.

Each plan compares what is wanted with what was observed. An empty plan means that the host already is as wanted, so
CHECK is "plan again and expect nothing", and a DEL of what is gone plans nothing.

A link that we moved is marked: its alias says its name on the host and its alias there. So it is recognised in the
pod whatever it is called, and brought home even if the ledger's record was lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from zlib import crc32

from cni_ub.errors import BadEnvironment
from cni_ub.steps import (
    Address,
    Altname,
    DetachXdp,
    Expose,
    Limit,
    LimitReceiving,
    LimitSending,
    Move,
    MoveEids,
    Rename,
    Route,
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
from ubhost.errors import NotFound
from ubhost.model import Interface, Link, Rate
from ubhost.model import Route as ModelRoute
from ubhost.provider import Bandwidth, Device, EidSlot
from ubhost.record import OriginalLink

MARK = "ub-cni:"
MAX_ALIAS = 255  # bytes, IFALIASZ without the NUL
UNLIMITED = Bandwidth()


class Mark(NamedTuple):
    """What the alias of a moved link tells."""

    name: str
    alias: str


def mark(link: Link) -> str:
    """Return the alias to give to a link before it moves."""
    return f"{MARK}{link.name}:{link.alias}".encode()[:MAX_ALIAS].decode(errors="ignore")


def read_mark(alias: str) -> Mark | None:
    name, separator, rest = alias.removeprefix(MARK).partition(":")
    return Mark(name, rest) if alias.startswith(MARK) and separator and name else None


@dataclass(frozen=True, slots=True)
class Wanted:
    """One attachment that a pod asked for.

    ``link`` is the netdev to move, by its name on the host; ``pod_index`` its number in the pod, once it is there.
    """

    device: Device
    ifname: str
    link: str | None = None
    mtu: int | None = None
    bandwidth: Bandwidth | None = None
    sending: Rate | None = None
    receiving: Rate | None = None
    pod_index: int = 0

    @property
    def shaper(self) -> str:
        """The name of the ifb in the pod: its own for each of the pod's interfaces, and short enough."""
        return f"ubi{crc32(self.ifname.encode()):08x}" if self.receiving else ""


@dataclass(frozen=True, slots=True)
class Seen:
    """The device of one attachment as it is now.

    ``host`` and ``pod`` are its netdev, on whichever side it is. ``names`` are those on each side, among the ones that
    matter here, that belong to *other* links.
    """

    host: Link | None = None
    pod: Link | None = None
    host_names: frozenset[str] = frozenset()
    pod_names: frozenset[str] = frozenset()
    exposed: frozenset[str] = frozenset()
    eids: frozenset[EidSlot] = frozenset()
    addresses: tuple[Interface, ...] = ()
    routes: tuple[ModelRoute, ...] = ()
    bandwidth: Bandwidth = UNLIMITED
    sending: Rate | None = None
    receiving: Rate | None = None
    has_shaper: bool = False

    @property
    def is_in_pod(self) -> bool:
        return self.pod is not None or bool(self.exposed)


def refuse_taken_name(want: Wanted, seen: Seen) -> None:
    """ADD must fail if the pod already has that interface, even if it is the wanted one.

    Raises:
        BadEnvironment: the name is taken in the pod.

    Source: containernetworking/cni SPEC.md 1.1.0, "ADD".
    """
    if want.ifname in seen.pod_names or (seen.pod and seen.pod.name == want.ifname):
        raise BadEnvironment(f"CNI_IFNAME {want.ifname} exists in the pod already")


def plan_attach(want: Wanted, seen: Seen) -> tuple[Step, ...]:
    """Return the steps that bring ``want`` about but for its addresses, in order; none if it already is.

    Raises:
        NotFound: its netdev is neither on the host nor in the pod.
    """
    return (*plan_link(want, seen), *plan_device(want, seen))


def plan_link(want: Wanted, seen: Seen) -> tuple[Step, ...]:
    """Return the steps that bring the netdev to the pod; see ``plan_attach``."""
    if want.link is None:
        return ()
    steps: list[Step] = []
    link = seen.pod
    if link is None:
        link = seen.host
        if link is None:
            raise NotFound(f"netdev {want.link} of {want.device.id} is not on this host")
        clashing = [name for name in link.altnames if name == want.ifname or name in seen.pod_names]
        steps += [Altname(Side.HOST, link.name, name, present=False) for name in clashing]
        if link.is_up:
            steps.append(SetUp(Side.HOST, link.name, up=False))
        if not read_mark(link.alias):
            steps.append(SetAlias(Side.HOST, link.name, mark(link), link.alias))
        steps.append(Move(Side.HOST, link.name, Side.POD, want.ifname))
        link = replace(link, name=want.ifname, is_up=False)
    if want.mtu and link.mtu != want.mtu:
        steps.append(SetMtu(Side.POD, link.name, want.mtu, link.mtu))
    if not link.is_up:
        steps.append(SetUp(Side.POD, link.name, up=True))
    return tuple(steps)


def plan_device(want: Wanted, seen: Seen) -> tuple[Step, ...]:
    """Return the steps that give the device to the pod: exposed first, because only then can its EIDs move.

    Source: reference/ub.md section 3, rule 2.
    """
    hidden = tuple(member for member in want.device.members if member not in seen.exposed)
    away = tuple(slot for slot in want.device.eids if not slot.eid.is_zero and slot not in seen.eids)
    limit = want.bandwidth if want.bandwidth not in (None, seen.bandwidth) else None
    return (
        *((Expose(hidden, present=True),) if hidden else ()),
        *((MoveEids(away, Side.POD),) if away else ()),
        *((Limit(want.device.id, limit, seen.bandwidth),) if limit else ()),
    )


def plan_configure(
    name: str, addresses: Iterable[Interface], routes: Iterable[ModelRoute], seen: Seen
) -> tuple[Step, ...]:
    """Return the steps that give the link ``name`` in the pod its addresses and routes; none if it has them."""
    missing = [address for address in addresses if address not in seen.addresses]
    unrouted = [route for route in routes if not any(_covers(found, route) for found in seen.routes)]
    return (
        *(Address(Side.POD, name, address, present=True) for address in missing),
        *(Route(Side.POD, name, route, present=True) for route in unrouted),
    )


def plan_rates(want: Wanted, seen: Seen) -> tuple[Step, ...]:
    """Return the steps that limit what the pod sends and receives. What nobody asked to limit is left alone."""
    sending, receiving = want.sending, want.receiving
    return (
        *((LimitSending(want.ifname, sending, seen.sending),) if not _is_limited(seen.sending, sending) else ()),
        *(
            (LimitReceiving(want.ifname, want.shaper, receiving, seen.receiving),)
            if not _is_limited(seen.receiving, receiving)
            else ()
        ),
    )


def _is_limited(found: Rate | None, wanted: Rate | None) -> bool:
    """Whether a limit is there. The burst is not compared: the kernel keeps it as a rounded time."""
    return wanted is None or (found is not None and found.bytes_a_second == wanted.bytes_a_second)


def _covers(found: ModelRoute, wanted: ModelRoute) -> bool:
    """Whether a route is there in everything that was asked for; the kernel fills in the rest."""
    same = (found.destination, found.gateway) == (wanted.destination, wanted.gateway)
    asked = ((wanted.mtu, found.mtu), (wanted.priority, found.priority), (wanted.table, found.table))
    return same and all(value is None or value == there for value, there in asked)


@dataclass(frozen=True, slots=True)
class Release:
    """How to give a device back: groups, each done as far as it goes whatever becomes of the others.

    ``device`` takes the device and its EIDs out of the pod. ``quiet`` silences the link there at once, so that its
    addresses can be given to others; ``home`` brings it to the host as it was.
    """

    device: tuple[Step, ...] = ()
    limits: tuple[Step, ...] = ()
    quiet: tuple[Step, ...] = ()
    home: tuple[Step, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.device or self.limits or self.quiet or self.home)


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


def plan_release(held: Held, seen: Seen) -> Release:
    """Return what gives the device back as it was before ADD. A thing that is gone plans nothing."""
    shown = tuple(member for member in held.members if member in seen.exposed)
    hide = [Expose(shown, present=False)] if shown else []
    left = tuple(slot for slot in held.eids if slot in seen.eids and slot.device not in held.members)
    back = [MoveEids(left, Side.HOST)] if left else []
    down = [SetUp(Side.POD, seen.pod.name, up=False)] if seen.pod and seen.pod.is_up else []
    limits = [Limit(held.device, held.limit, seen.bandwidth)] if held.limit not in (None, seen.bandwidth) else []
    freed = [LimitReceiving(seen.pod.name if seen.pod else "", held.shaper, None, None)] if seen.has_shaper else []
    return Release((*hide, *back), (*limits, *held.service_levels), (*down, *freed), _plan_home(held, seen))


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

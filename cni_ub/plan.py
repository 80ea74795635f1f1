"""Decide what ADD and DEL must do. Pure: no file, socket or system call is touched here.

Each plan compares what is wanted with what was observed. An empty plan means that the host already is as wanted, so
CHECK is "plan again and expect nothing", and a DEL of what is gone plans nothing.

A link that we moved is marked: its alias says its name on the host and its alias there. So it is recognised in the
pod whatever it is called, and brought home even if the ledger's record was lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple
from zlib import crc32

from cni_ub.errors import BadEnvironment
from cni_ub.steps import (
    Address,
    Altname,
    Expose,
    Limit,
    LimitReceiving,
    LimitSending,
    Move,
    MoveEids,
    Route,
    SetAlias,
    SetMtu,
    SetUp,
    Side,
    Step,
)
from ubhost.errors import NotFound
from ubhost.model import Interface, Link, Rate
from ubhost.model import Route as ModelRoute
from ubhost.provider import Bandwidth, Device, EidSlot

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

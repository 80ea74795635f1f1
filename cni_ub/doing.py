"""Carry out steps on one attachment, in the kernel and in the driver.

This is the only place of the plugin that changes links, devices and rates.

Source: design section 4; reference/cni.md section 4 (H18 to H23); reference/ub.md section 3.
"""

import contextlib
import errno
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from cni_ub import shaping
from cni_ub.errors import NamespaceRefused
from cni_ub.steps import (
    Address,
    Altname,
    DetachXdp,
    DeviceStep,
    Expose,
    Limit,
    LimitReceiving,
    LimitSending,
    LinkStep,
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
    Setting,
    SetUp,
    Side,
    Step,
)
from ubhost.errors import Conflict, HostFault, NotFound
from ubhost.kernel import netns
from ubhost.kernel.rtnl import Refused, Rtnl
from ubhost.model import Link
from ubhost.provider import EidSlot, Provider

LOG = logging.getLogger("cni_ub")


class End(NamedTuple):
    """One side of an attachment: a socket in its network namespace, and the descriptor of that."""

    socket: Rtnl
    fd: int


class Doer:
    """Does what steps say, between ``ends``; without the pod's, if its namespace is gone."""

    def __init__(self, provider: Provider, ends: Mapping[Side, End]) -> None:
        self._provider = provider
        self._ends = ends
        self._indexes: dict[tuple[Side, str], int] = {}

    def do(self, step: Step) -> None:
        """Carry out one step.

        Raises:
            NotFound: the link of the step is gone.
            Conflict: a name is taken.
            NamespaceRefused: the driver did not let a device or an EID in.
            HostFault: the kernel refused.
        """
        match step:
            case Expose() | MoveEids() | Limit() | SetServiceLevel():
                self._command(step)
            case Move():
                self._move(step)
            case Rename() | Altname():
                self._name(step)
            case Address():
                self._address(step)
            case Route():
                self._route(step)
            case LimitSending() | LimitReceiving():
                shaping.limit(self._end(Side.POD).socket, step)
            case _:
                self._set(step)

    def _command(self, step: DeviceStep) -> None:
        match step:
            case Limit(device=device, bandwidth=bandwidth):
                self._provider.set_bandwidth(device, bandwidth)
            case SetServiceLevel(member=member, priority=priority, level=level):
                self._provider.set_service_level(member, level, priority)
            case Expose(members=members, present=present):
                with _namespace_reasons(f"{'expose' if present else 'unexpose'} {', '.join(members)}"):
                    self._expose(members, present=present)
            case MoveEids(slots=slots, to=to):
                with _namespace_reasons(f"move {len(slots)} EIDs of {slots[0].device} to the {to.value}"):
                    self._move_eids(slots, to)

    def _expose(self, members: tuple[str, ...], *, present: bool) -> None:
        (self._provider.expose_all if present else self._provider.unexpose_all)(members, self._end(Side.POD).fd)

    def _move_eids(self, slots: tuple[EidSlot, ...], to: Side) -> None:
        fd = self._end(to).fd
        with contextlib.suppress(NotFound) if to is Side.HOST else contextlib.nullcontext():  # they are home
            self._provider.move_eids(slots, fd)

    def _move(self, step: Move) -> None:
        self._indexes.clear()  # a link may get another number on the other side
        source, target = self._end(step.at).socket, self._end(step.to)
        link = self._link(step.at, step.name)
        if target.socket.link(step.to_name):
            raise Conflict(f"{step.to_name} exists on the {step.to.value} already")
        began = time.monotonic()
        try:
            source.move(link.index, target.fd, step.to_name)
        except Refused as refused:
            self._take_back(step, link)
            raise HostFault(f"cannot move {step.name} to the {step.to.value} as {step.to_name}: {refused}") from refused
        ms = round((time.monotonic() - began) * 1000, 1)
        LOG.info("the kernel moved a netdev", extra={"link": step.name, "to": step.to.value, "ms": ms})

    def _take_back(self, step: Move, link: Link) -> None:
        """A move whose new name was taken meanwhile has happened, under the old name. Source: design section 11."""
        source, target = self._end(step.at), self._end(step.to).socket
        stray = target.link(step.name)
        if source.socket.link(step.name) is None and stray and stray.mac == link.mac:
            target.move(stray.index, source.fd, step.name)

    def _set(self, step: Setting) -> None:
        socket, index = self._target(step)
        match step:
            case SetUp(up=up):
                socket.set_up(index, up=up)
            case SetAlias(alias=alias):
                socket.set_alias(index, alias)
            case SetMtu(mtu=mtu):
                socket.set_mtu(index, mtu)
            case SetQlen(qlen=qlen):
                socket.set_qlen(index, qlen)
            case SetMac(mac=mac):
                socket.set_mac(index, mac)
            case SetGroup(group=group):
                socket.set_group(index, group)
            case SetPromisc(on=on):
                socket.set_promisc(index, on=on)
            case SetAllmulti(on=on):
                socket.set_allmulti(index, on=on)
            case DetachXdp():
                socket.detach_xdp(index)

    def _name(self, step: Rename | Altname) -> None:
        socket, index = self._target(step)
        match step:
            case Rename(to=name):
                self._indexes.clear()
                socket.rename(index, name)
            case Altname(altname=name, present=True):
                socket.add_altname(index, name)
            case Altname(altname=name):
                socket.remove_altname(index, name)

    def _address(self, step: Address) -> None:
        socket, index = self._target(step)
        if step.address.version == 6 and step.present:
            self._allow_ipv6(step)
        with _tolerating(errno.EEXIST if step.present else errno.EADDRNOTAVAIL):
            (socket.add_address if step.present else socket.remove_address)(index, step.address)

    def _route(self, step: Route) -> None:
        socket, index = self._target(step)
        with _tolerating(errno.EEXIST if step.present else errno.ESRCH):
            (socket.add_route if step.present else socket.remove_route)(index, step.route)

    def _allow_ipv6(self, step: Address) -> None:
        """Many images and runtimes switch IPv6 off for new links; who gets an IPv6 address wants it on."""
        switch = Path("/proc/sys/net/ipv6/conf", step.name, "disable_ipv6")
        with netns.visiting(self._end(step.at).fd), contextlib.suppress(OSError):
            if switch.read_text(encoding="ascii").strip() != "0":
                switch.write_text("0", encoding="ascii")

    def _target(self, step: LinkStep) -> tuple[Rtnl, int]:
        """Return the socket and the number of a step's link; numbers are kept, they are not used again soon."""
        key = (step.at, step.name)
        if key not in self._indexes:
            self._indexes[key] = self._link(step.at, step.name).index
        return self._end(step.at).socket, self._indexes[key]

    def _link(self, side: Side, name: str) -> Link:
        link = self._end(side).socket.link(name)
        if link is None:
            raise NotFound(f"no link {name} on the {side.value}")
        return link

    def _end(self, side: Side) -> End:
        if side not in self._ends:
            raise NotFound("the pod's network namespace is gone")
        return self._ends[side]


@contextlib.contextmanager
def _namespace_reasons(doing: str) -> Iterator[None]:
    try:
        yield
    except HostFault as fault:
        raise NamespaceRefused(f"cannot {doing}: {fault}") from fault


@contextlib.contextmanager
def _tolerating(code: int) -> Iterator[None]:
    """Let pass that the kernel, or another plugin of the chain, was faster."""
    try:
        yield
    except Refused as refused:
        if refused.code != code:
            raise

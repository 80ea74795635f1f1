"""Look at one attachment in the kernel and the driver, and carry out steps on it.

This is the only place of the plugin that changes links, devices and rates.

Source: design section 4; reference/cni.md section 4 (H18 to H23); reference/ub.md section 3.
"""

import contextlib
import errno
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from cni_ub import shaping
from cni_ub.errors import NamespaceRefused
from cni_ub.identity import Proofs
from cni_ub.plan import Seen, Wanted, read_mark
from cni_ub.planback import Held, fallback_name
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
from ubhost.provider import Bandwidth, EidSlot, Provider

LOG = logging.getLogger("cni_ub")


class Node:
    """The host and one pod. ``pod`` is an open descriptor of its namespace; ``None`` when that is gone."""

    def __init__(self, provider: Provider, pod: int | None) -> None:
        self.provider = provider
        self.pod = pod
        with contextlib.ExitStack() as opened:
            self._here = os.open(netns.OWN, os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, self._here)
            self._indexes: dict[tuple[Side, str], int] = {}
            self._host = opened.enter_context(Rtnl(label="the host"))
            self._proofs = Proofs(self._host)
            self._pod = opened.enter_context(Rtnl(pod, label="the pod")) if pod is not None else None
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._opened.close()

    @property
    def cookie(self) -> int:
        return self._pod.cookie if self._pod else 0

    # What is there

    def observe_wanted(self, want: Wanted) -> Seen:
        """Look at all that ADD and CHECK need."""
        limited = want.device.id if want.bandwidth else ""
        return self.observe_device(self.observe_link(want), want.device.members, limited, want.device.eids)

    def observe_link(self, want: Wanted) -> Seen:
        """Look at the netdev, which is on the host or, marked, in the pod."""
        pod = self.link_in_pod(want.ifname)
        ours = pod if pod and _is_wanted(pod, want) else None
        host = self._host.link(want.link) if want.link and not ours else None
        if host and host.name != want.link:  # another link has it as an alternative name
            host = None
        names = {want.ifname, *(host.altnames if host else ())}
        taken = frozenset(name for name in names if (link := self.link_in_pod(name)) and link != ours)
        return Seen(host=host, pod=ours, pod_names=taken)

    def observe_held(self, held: Held, ifname: str) -> Seen:
        """Look for the netdev that DEL must bring home, wherever the pod left it."""
        pod = self._find_in_pod(held, ifname)
        host = None if pod else self._find_on_host(held)
        link = pod or host
        names: set[str] = set(held.link.altnames) if held.link else set()
        if link and (original := held.link or read_mark(link.alias)):
            names.add(original.name)
        others = (name for name in names if (found := self._host.link(name)) and found != host)
        addresses = self._host.addresses(host.index) if host else ()
        has_shaper = bool(held.shaper and self.link_in_pod(held.shaper))
        return Seen(host, pod, host_names=frozenset(others), addresses=addresses, has_shaper=has_shaper)

    def link_in_pod(self, name: str) -> Link | None:
        return self._pod.link(name) if self._pod else None

    def link_on_host(self, name: str) -> Link | None:
        return self._host.link(name)

    def observe_pod(self, name: str, *, with_routes: bool = True) -> Seen:
        """Look at the addresses and routes of a link in the pod."""
        link = self.link_in_pod(name)
        if link is None or self._pod is None:
            return Seen()
        routes = self._pod.routes(link.index) if with_routes else ()
        return Seen(pod=link, addresses=self._pod.addresses(link.index), routes=routes)

    def host_addresses(self, link: Link) -> tuple[str, ...]:
        return tuple(str(address) for address in self._host.addresses(link.index))

    def observe_device(
        self, seen: Seen, members: tuple[str, ...], limited: str, eids: tuple[EidSlot, ...] = ()
    ) -> Seen:
        """Add what the driver tells: ``members`` and EIDs that the pod sees, the bandwidth of device ``limited``."""
        bandwidth = self.provider.bandwidth(limited) if limited else Bandwidth()
        if self.pod is None or not (members or eids):
            return replace(seen, bandwidth=bandwidth)
        exposed = frozenset(self.provider.exposed(self.pod))
        visible = frozenset(self.provider.visible(self.pod)) if exposed else frozenset()
        return replace(seen, exposed=exposed & frozenset(members), eids=visible, bandwidth=bandwidth)

    def _find_in_pod(self, held: Held, ifname: str) -> Link | None:
        """Find our netdev in the pod under its name, or under any other."""
        if self._pod is None:
            return None
        named = self._pod.link(ifname)
        if named and self._proofs.is_ours_in_pod(named, held, self.pod):
            return named
        links = self._pod.links()
        return next((link for link in links if self._proofs.is_ours_in_pod(link, held, self.pod)), None)

    def _find_on_host(self, held: Held) -> Link | None:
        """Find it on the host under its name, or come back under another one when the pod died."""
        named = self._host.link(held.link.name) if held.link else None
        if named and self._proofs.is_ours_on_host(named, held):
            return named
        return next((link for link in self._host.links() if self._proofs.is_ours_on_host(link, held)), None)

    def unrecorded_netdevs(self, ifname: str) -> tuple[str, ...]:
        """Return what links of the pod were called on the host, where their marks can be believed.

        If the link ``ifname`` is one of them, only that: the pod did not rename it.
        """
        links = self._pod.links() if self._pod else ()
        marks = ((link, read_mark(link.alias)) for link in links)
        ours = {link.name: m.name for link, m in marks if m and self._proofs.is_marked(link, m.name, self.pod)}
        return (ours[ifname],) if ifname in ours else tuple(ours.values())

    def fetch_stray(self, held: Held) -> bool:
        """Bring our netdev to the host if the pod moved it on, into a namespace that it made; whether it was found."""
        if self.pod is None:
            return False
        for inode in netns.living() - {netns.inode(self.pod), netns.inode(self._here)}:
            fd = netns.find_netns(inode)
            if fd is None:
                continue
            try:
                with Rtnl(fd, label=f"net:[{inode}]") as elsewhere:
                    for link in elsewhere.links():
                        if self._proofs.is_ours_elsewhere(link, held, fd):
                            elsewhere.move(link.index, self._here, fallback_name(link))
                            return True
            except HostFault:  # it died while we looked
                continue
            finally:
                os.close(fd)
        return False

    def observe_rates(self, want: Wanted) -> Seen:
        """Look at the limits of a link in the pod, of those that are wanted."""
        return shaping.observe(self._pod, want) if self._pod else Seen()

    # What is done

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
                shaping.limit(self._socket(Side.POD), step)
            case _:
                self._set(step)

    def _command(self, step: DeviceStep) -> None:
        match step:
            case Limit(device=device, bandwidth=bandwidth):
                self.provider.set_bandwidth(device, bandwidth)
            case SetServiceLevel(member=member, priority=priority, level=level):
                self.provider.set_service_level(member, level, priority)
            case Expose(members=members, present=present):
                with _namespace_reasons(f"{'expose' if present else 'unexpose'} {', '.join(members)}"):
                    self._expose(members, present=present)
            case MoveEids(slots=slots, to=to):
                with _namespace_reasons(f"move {len(slots)} EIDs of {slots[0].device} to the {to.value}"):
                    self._move_eids(slots, to)

    def _expose(self, members: tuple[str, ...], *, present: bool) -> None:
        (self.provider.expose_all if present else self.provider.unexpose_all)(members, self._pod_fd())

    def _move_eids(self, slots: tuple[EidSlot, ...], to: Side) -> None:
        if to is Side.POD:
            self.provider.move_eids(slots, self._pod_fd())
            return
        with contextlib.suppress(NotFound):  # they are home
            self.provider.move_eids(slots, self._here)

    def _move(self, step: Move) -> None:
        self._indexes.clear()  # a link may get another number on the other side
        source, target = self._socket(step.at), self._socket(step.to)
        link = self._link(step.at, step.name)
        if target.link(step.to_name):
            raise Conflict(f"{step.to_name} exists on the {step.to.value} already")
        began = time.monotonic()
        try:
            source.move(link.index, self._fd(step.to), step.to_name)
        except Refused as refused:
            self._take_back(step, link)
            raise HostFault(f"cannot move {step.name} to the {step.to.value} as {step.to_name}: {refused}") from refused
        ms = round((time.monotonic() - began) * 1000, 1)
        LOG.info("the kernel moved a netdev", extra={"link": step.name, "to": step.to.value, "ms": ms})

    def _take_back(self, step: Move, link: Link) -> None:
        """A move whose new name was taken meanwhile has happened, under the old name. Source: design section 11."""
        target = self._socket(step.to)
        stray = target.link(step.name)
        if self._socket(step.at).link(step.name) is None and stray and stray.mac == link.mac:
            target.move(stray.index, self._fd(step.at), step.name)

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
        with netns.visiting(self._fd(step.at)), contextlib.suppress(OSError):
            if switch.read_text(encoding="ascii").strip() != "0":
                switch.write_text("0", encoding="ascii")

    def _target(self, step: LinkStep) -> tuple[Rtnl, int]:
        """Return the socket and the number of a step's link; numbers are kept, they are not used again soon."""
        key = (step.at, step.name)
        if key not in self._indexes:
            self._indexes[key] = self._link(step.at, step.name).index
        return self._socket(step.at), self._indexes[key]

    def _link(self, side: Side, name: str) -> Link:
        link = self._socket(side).link(name)
        if link is None:
            raise NotFound(f"no link {name} on the {side.value}")
        return link

    def _socket(self, side: Side) -> Rtnl:
        if side is Side.HOST:
            return self._host
        if self._pod is None:
            raise NotFound("the pod's network namespace is gone")
        return self._pod

    def _fd(self, side: Side) -> int:
        return self._here if side is Side.HOST else self._pod_fd()

    def _pod_fd(self) -> int:
        if self.pod is None:
            raise NotFound("the pod's network namespace is gone")
        return self.pod


def _is_wanted(link: Link, want: Wanted) -> bool:
    found = read_mark(link.alias)
    return link.name == want.ifname and (link.index == want.pod_index or bool(found and found.name == want.link))


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

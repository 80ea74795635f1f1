"""Look at one attachment in the kernel and the driver; ``cni_ub.doing`` carries out steps on it.

Source: design section 4; reference/cni.md section 4 (H18 to H23); reference/ub.md section 3.
"""

import contextlib
import logging
import os
from dataclasses import replace
from types import TracebackType
from typing import Self

from cni_ub import shaping
from cni_ub.doing import Doer, End
from cni_ub.identity import Proofs
from cni_ub.plan import Seen, Wanted, read_mark
from cni_ub.planback import Held, fallback_name
from cni_ub.steps import Side, Step
from ubhost.errors import HostFault
from ubhost.kernel import netns
from ubhost.kernel.rtnl import Rtnl
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
            self._host = opened.enter_context(Rtnl(label="the host"))
            self._proofs = Proofs(self._host)
            self._pod = opened.enter_context(Rtnl(pod, label="the pod")) if pod is not None else None
            ends = {Side.HOST: End(self._host, self._here)}
            if self._pod and pod is not None:
                ends[Side.POD] = End(self._pod, pod)
            self._doer = Doer(provider, ends)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._opened.close()

    @property
    def cookie(self) -> int:
        return self._pod.cookie if self._pod else 0

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

    def do(self, step: Step) -> None:
        """Carry out one step; see ``Doer.do``."""
        self._doer.do(step)


def _is_wanted(link: Link, want: Wanted) -> bool:
    found = read_mark(link.alias)
    return link.name == want.ifname and (link.index == want.pod_index or bool(found and found.name == want.link))

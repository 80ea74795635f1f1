"""ADD: everything is checked before anything changes, and all is taken back if any of it fails.

Order: judge the request -> lock the attachment, then the device -> heal what a killed call left there -> write the
ledger -> move the link, and meanwhile the device, and let IPAM work -> addresses -> look from inside the pod -> say so
in the ledger -> answer.

Source: design section 4; containernetworking/cni SPEC.md 1.1.0, "ADD"; reference/cni.md section 4, B and C.
"""

import logging
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from cni_ub import recording, results, ways
from cni_ub.addresses import addresses_of, routes_of
from cni_ub.beside import beside
from cni_ub.choice import choose_device
from cni_ub.delegate import ipam_of
from cni_ub.errors import DelegateFailed, Drifted
from cni_ub.host import Host
from cni_ub.ipam import Ipam, Running
from cni_ub.node import Node
from cni_ub.plan import Seen, Wanted, plan_configure, plan_device, plan_link, plan_rates, refuse_taken_name
from cni_ub.protocol import Request
from cni_ub.rates import rates_of
from cni_ub.release import release
from cni_ub.results import Result
from cni_ub.sharing import owner_of, refuse_for_many, refuse_strangers, share_of
from cni_ub.stale import PATIENCE, heal_own, heal_unrecorded, reclaim
from cni_ub.steps import SetServiceLevel, Step
from ubhost.apply import apply
from ubhost.errors import Busy, InvalidRequest, NotFound, Unsupported
from ubhost.kernel import netns
from ubhost.model import Link
from ubhost.provider import Device, Kind, Sharing
from ubhost.record import Record

LOG = logging.getLogger("cni_ub")


def add(host: Host, request: Request, pod: int) -> dict[str, Any]:
    """Attach a device to the pod; return the result document.

    Args:
        pod: open descriptor of the pod's network namespace, known to be one and not the host's.
    """
    conf = request.conf
    previous = results.parse(conf.prev_result, conf.version, "prevResult") if conf.prev_result is not None else Result()
    with host.ledger.attachment_lock(request.container, request.ifname, PATIENCE):
        heal_own(host, request, pod)
        provider = host.provider() if conf.device_id or not conf.is_chained else host.provider_or_absent()
        device = choose_device(host, request, provider)
        if device is None:  # chained, and this pod has no UB device: one list can serve every pod of a node
            return results.express(previous, conf.version)
        with host.ledger.device_lock(device.id, PATIENCE), Node(provider, pod) as node:
            others = reclaim(host, device.id)
            refuse_strangers(device.id, others, request.container, is_shared=conf.is_shared)
            heal_unrecorded(device, provider)
            return _Attaching(host, request, node, device, previous, provider.sharing(), others).run()


@dataclass(slots=True)
class _Attaching:
    """One ADD, with its locks held. ``record`` is what the ledger says of it at any time."""

    host: Host
    request: Request
    node: Node
    device: Device
    previous: Result
    sharing: Sharing
    others: tuple[Record, ...]  # of pods that have the device too
    record: Record = field(init=False)

    def run(self) -> dict[str, Any]:
        conf = self.request.conf
        self.device = self._our_share(self.device)
        want = self._wanted()
        seen = self.node.observe_link(want)
        self._refuse(want, seen)
        if ipam := ipam_of(self.host, self.request):
            ipam.require()
        self.host.stop.check()
        self._remember(self._first_record(want, seen.host, ipam))
        try:
            given = self._attach(want, seen, ipam)
            self._set_up_ways(want, given)
            document = results.express(self._result(want, given), conf.version)
            self.host.stop.check()
            link = self.node.link_in_pod(want.ifname) if want.link else None
            self._remember(recording.finished(self.record, link, given))
        except BaseException:
            release(self.host, self.record, self.node.pod, ipam)
            raise
        return document

    def _remember(self, record: Record) -> None:
        self.host.ledger.write(record)
        self.record = record

    def _wanted(self) -> Wanted:
        conf = self.request.conf
        is_many_pods = self.sharing is Sharing.SHARED and self.node.provider.kind is Kind.RDMA
        is_taken = any(other.link for other in self.others)
        moves = conf.netdev == "auto" and self.device.netdev is not None and not (is_many_pods or is_taken)
        name = self._free_name() if conf.is_chained else self.request.ifname
        want = Wanted(self.device, name, self.device.netdev if moves else None, conf.mtu)
        return replace(want, **rates_of(conf, self.node.provider.kind))

    def _free_name(self) -> str:
        """In a chain CNI_IFNAME is the first plugin's interface: ours is the first ub<N> that nobody has."""
        taken = {str(interface.get("name")) for interface in self.previous.interfaces}
        names = (f"ub{number}" for number in range(1024))
        return next(name for name in names if name not in taken and not self.node.link_in_pod(name))

    def _refuse(self, want: Wanted, seen: Seen) -> None:
        """Refuse what cannot work, as long as nothing is changed.

        Raises:
            InvalidRequest: the configuration does not fit the device.
            BadEnvironment: the name is taken in the pod.
            Unsupported: the host shares its devices with every namespace.
            NotFound: the device is broken, or its netdev is missing.
            Conflict: somebody else than a ub-cni gave the device to the pod.
        """
        conf = self.request.conf
        if not conf.is_shared and self.sharing is not Sharing.EXCLUSIVE:
            raise Unsupported(_SHARED.format(self.device.id))
        if want.link is None and (want.sending or want.receiving):
            raise InvalidRequest(
                f"runtimeConfig.bandwidth limits a netdev, and {self.device.id} brings none to the pod"
            )
        if want.link is None and not conf.is_chained and conf.netdev != "none":
            having = next((f", {owner_of(other)} has it" for other in self.others if other.link), "")
            raise InvalidRequest(
                f"{self.device.id} has no netdev to be {want.ifname}{having}: set netdev to none, or chain"
            )
        has_address = bool(conf.ipam_type or self.previous.ips or (seen.host and self.node.host_addresses(seen.host)))
        results.refuse_inexpressible(conf.version, has_address=has_address)
        if not self.device.is_healthy:
            raise NotFound(f"{self.device.id} is not healthy")
        if want.link:
            refuse_taken_name(want, seen)
            plan_link(want, seen)

    def _first_record(self, want: Wanted, link: Link | None, ipam: Ipam | None) -> Record:
        """Say what is to be done, with all that is changed by it as it is now."""
        is_exclusive = self.sharing is Sharing.EXCLUSIVE
        return replace(
            recording.first(self.request, self.device, ipam),
            netns_inode=netns.inode(self.node.pod) if self.node.pod is not None else 0,
            netns_cookie=self.node.cookie,
            boot_id=self.host.ledger.boot_id,
            members=self.device.members if is_exclusive else (),  # else the pod sees them anyway: not ours to take away
            link=recording.original(link, want.ifname, self.node.host_addresses(link)) if link else None,
            is_allocated=is_exclusive,
            limit_mbps=self._limit_before(want),
            shaper=want.shaper,
        )

    def _our_share(self, device: Device) -> Device:
        """Return the device with the EIDs that are to be the pod's: all, or those of one of many pods.

        Raises:
            Exhausted: no EID is left.
            InvalidRequest: something of the whole device was asked for.
        """
        if not self.request.conf.is_shared or self.node.provider.kind is Kind.RDMA:  # whose GIDs do not move
            return device
        refuse_for_many(device.id, self.request.conf.qos)
        return share_of(device, self.others) if device.members else device  # what it is made of shows when allocated

    def _limit_before(self, want: Wanted) -> tuple[int, int] | None:
        if want.bandwidth is None:
            return None
        before = self.node.provider.bandwidth(want.device.id)
        return before.min_mbps, before.max_mbps

    def _attach(self, want: Wanted, seen: Seen, ipam: Ipam | None) -> Result:
        """Bring link, device and addresses together.

        The link goes first, because the kernel's move takes long and leaves us nothing to do: IPAM and the device are
        seen to meanwhile. But an RDMA device goes before it and alone: a soft one dies when its netdev leaves the
        namespace, so it must have refused to move before that.
        """
        is_rdma = self.node.provider.kind is Kind.RDMA
        if is_rdma:
            self._attach_device(want)
        with ExitStack() as failing:
            with beside(lambda: apply(plan_link(want, seen), self._do)):
                running = ipam.start_add() if ipam else None
                if running:
                    self.host.stop.watch(running.process)
                    failing.callback(running.kill)
                if not is_rdma:
                    self._attach_device(want)
                given = self._given(ipam, running) if ipam and running else self._kept()
            failing.pop_all()
        apply(_plan_addresses(self.node, want, given), self._do)
        apply(plan_rates(want, self.node.observe_rates(want)), self._do)
        missing = plan_link(want, self.node.observe_link(want))
        rates = plan_rates(want, self.node.observe_rates(want))
        self._refuse_missing((*missing, *_plan_addresses(self.node, want, given), *rates))
        return given

    def _attach_device(self, want: Wanted) -> None:
        self._allocate()
        device = self.device
        want = replace(want, device=device)
        limited = device.id if want.bandwidth else ""
        apply(plan_device(want, self.node.observe_device(Seen(), device.members, limited, device.eids)), self._do)
        self._set_service_level()
        seen = self.node.observe_device(Seen(), device.members, limited, device.eids)
        self._refuse_missing(plan_device(want, seen))

    def _set_up_ways(self, want: Wanted, given: Result) -> None:
        if self.record.is_zero_copy and self.node.pod is not None:
            ifname = want.ifname if want.link else ""
            ways.set_up(self.host, self.request, self.record, self.node.provider.kind, ifname, given, self.node.pod)

    def _allocate(self) -> None:
        """Take the device from the host's manager, which may tell only then what it is made of.

        The device plugin may have taken it for this pod before, then it is not ours to free. Pods that share it have it
        together, and the last one frees it.
        """
        if not self.record.is_allocated or any(other.is_allocated for other in self.others):
            return
        try:
            self.node.provider.allocate(self.device.id)
        except Busy as error:
            LOG.info("the device is allocated already", extra={"device": self.device.id, "error": str(error)})
            self._remember(replace(self.record, is_allocated=False))
        if not self.device.members:
            self.device = self._our_share(self.node.provider.device(self.device.id))
            self._remember(replace(self.record, members=self.device.members, eids=recording.slots(self.device)))

    def _refuse_missing(self, missing: tuple[Step, ...]) -> None:
        """Planned again from inside the pod, nothing may be left to do.

        Raises:
            Drifted: something did not stay as it was made.
        """
        if missing:
            raise Drifted(f"{self.device.id} is not as it was just made; missing: {describe(missing)}")

    def _given(self, ipam: Ipam, running: Running) -> Result:
        try:
            return ipam.finish_add(running)
        except DelegateFailed:
            self.host.stop.check()  # it was we who ended it
            raise

    def _do(self, step: Step) -> None:
        self.host.stop.check()
        LOG.debug("step", extra={"step": repr(step)})
        self.node.do(step)

    def _set_service_level(self) -> None:
        """Service levels are a property of the device that nobody else uses while we hold it; DEL puts them back."""
        qos = self.request.conf.qos
        if qos.service_level is None:
            return
        level, priority = qos.service_level, qos.priority or 0
        before = {member: self.node.provider.service_level(member, priority) for member in self.device.members}
        known = tuple((member, priority, was) for member, was in before.items() if was is not None)
        self._remember(replace(self.record, service_levels=known))
        apply(
            [SetServiceLevel(m, priority, level, level if was is None else was) for m, was in before.items()], self._do
        )

    def _kept(self) -> Result:
        """Without IPAM the netdev keeps the addresses it had on the host: on ipourma they are its EIDs."""
        addresses = self.record.link.addresses if self.record.link else ()
        return Result(ips=tuple({"address": address} for address in addresses), dns=self.request.conf.dns)

    def _result(self, want: Wanted, given: Result) -> Result:
        dns = self.request.conf.dns or given.dns
        link = self.node.link_in_pod(want.ifname) if want.link else None
        if link is None:
            return replace(self.previous, dns=self.previous.dns or dns)
        interface = {"name": link.name, "mac": link.mac, "mtu": link.mtu, "sandbox": self.request.netns}
        shown = {key: value for key, value in interface.items() if value}
        return self.previous.with_interface(shown, given.ips, given.routes, dns)


_SHARED = (
    "{} cannot be given to one pod alone: the host shares devices with every network namespace. At boot, before"
    " containers start, run `urma_admin system set dev_sharing off` (RDMA: `rdma system set netns exclusive`), or set"
    " isolation to shared"
)


def _plan_addresses(node: Node, want: Wanted, given: Result) -> tuple[Step, ...]:
    if want.link is None:
        return ()
    routes = routes_of(given)
    seen = node.observe_pod(want.ifname, with_routes=bool(routes))
    return plan_configure(want.ifname, addresses_of(given), routes, seen)


def describe(steps: Iterable[Step]) -> str:
    return "; ".join(repr(step) for step in steps)

"""ADD: everything is checked before anything changes, and all is taken back if any of it fails.

Order: judge the request -> lock the attachment, then the device -> heal what a killed call left there -> write the
ledger -> move the link, and meanwhile the device, and let IPAM work -> addresses -> look from inside the pod -> say so
in the ledger -> answer.

Source: design section 4; containernetworking/cni SPEC.md 1.1.0, "ADD"; reference/cni.md section 4, B and C.
"""

import logging
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from cni_ub import results
from cni_ub.addresses import addresses_of, routes_of
from cni_ub.beside import beside
from cni_ub.choice import choose_device
from cni_ub.errors import DelegateFailed, Drifted
from cni_ub.host import Host
from cni_ub.identity import identity_of
from cni_ub.ipam import Ipam, Running
from cni_ub.node import Node
from cni_ub.plan import (
    Held,
    Seen,
    Wanted,
    plan_configure,
    plan_device,
    plan_link,
    plan_rates,
    plan_release,
    refuse_taken_name,
)
from cni_ub.protocol import NetConf, Request
from cni_ub.rates import rates_of
from cni_ub.release import holds_in_pod, release
from cni_ub.results import Result
from cni_ub.steps import SetServiceLevel, Step
from ubhost.apply import apply
from ubhost.errors import Busy, Conflict, HostFault, InvalidRequest, NotFound, UbError, Unsupported
from ubhost.kernel import netns
from ubhost.model import Link
from ubhost.provider import Device, Kind, Provider, Sharing
from ubhost.record import Delegate, OriginalLink, Record, State

LOG = logging.getLogger("cni_ub")
PATIENCE = 10.0  # seconds to wait for an attachment or a device that another call has locked


def add(host: Host, request: Request, pod: int) -> dict[str, Any]:
    """Attach a device to the pod; return the result document.

    Args:
        pod: open descriptor of the pod's network namespace, known to be one and not the host's.
    """
    conf = request.conf
    previous = results.parse(conf.prev_result, conf.version, "prevResult") if conf.prev_result is not None else Result()
    with host.ledger.attachment_lock(request.container, request.ifname, PATIENCE):
        _heal_own(host, request, pod)
        provider = host.provider() if conf.device_id or not conf.is_chained else host.provider_or_absent()
        device = choose_device(host, request, provider)
        if device is None:  # chained, and this pod has no UB device: one list can serve every pod of a node
            return results.express(previous, conf.version)
        with host.ledger.device_lock(device.id, PATIENCE), Node(provider, pod) as node:
            _reclaim(host, device.id)
            _heal_unrecorded(device, provider)
            return _Attaching(host, request, node, device, previous, provider.sharing()).run()


def ipam_of(host: Host, request: Request) -> Ipam | None:
    """Return the delegate that the configuration names."""
    if not request.conf.ipam_type:
        return None
    return Ipam(request.conf.ipam_type, request.conf.raw, request.environ, host.is_short_lived)


def remembered_ipam(host: Host, record: Record) -> Ipam | None:
    """Return the delegate of an attachment whose runtime does not speak for it now."""
    if record.delegate is None:
        return None
    return Ipam(record.delegate.type, record.delegate.config, record.delegate.environ, host.is_short_lived)


def _heal_own(host: Host, request: Request, pod: int) -> None:
    """Make way for this attachment: it may exist from a call that was killed, or whose agent died under it.

    Raises:
        Conflict: it exists, and its ADD finished.
    """
    for record in host.ledger.of_attachment(request.container, request.ifname):
        finished = record.state is State.ATTACHED and record.nonce != request.nonce
        if finished and record.boot_id == host.ledger.boot_id and record.netns_inode == netns.inode(pod):
            raise Conflict(f"{request.container} has {record.device} as {request.ifname} already; DEL comes before ADD")
        with host.ledger.device_lock(record.device, PATIENCE):
            _release_stale(host, record)


def _reclaim(host: Host, device: str) -> None:
    """Take a device back from an attachment that is dead; the device is locked, so nobody is at work on it.

    Raises:
        Conflict: a living pod has it.
    """
    record = host.ledger.of_device(device)
    if record is None:
        return
    if record.is_damaged and holds_in_pod(host, record):
        raise Conflict(
            f"{device} is still with a pod, by a damaged record of container {record.container}: DEL frees it"
        )
    if record.state is State.ATTACHED and not record.is_damaged and holds_in_pod(host, record):
        owner = f"container {record.container} ({record.pod or 'no pod name'}) as {record.ifname}"
        raise Conflict(f"{device} belongs to {owner} since {time.ctime(record.since)}")
    _release_stale(host, record)


def _heal_unrecorded(device: Device, provider: Provider) -> None:
    """Give a netdev its name back that came home from a dead pod, still marked, after its record was lost."""
    if not device.netdev:
        return
    with Node(provider, None) as node:
        if node.link_on_host(device.netdev):
            return
        held = Held(device.id, netdev=device.netdev)
        apply(plan_release(held, node.observe_held(held, "")).home, node.do)


def _release_stale(host: Host, record: Record) -> None:
    """Release what a dead attachment left.

    Raises:
        HostFault: the device could not be taken back.
        Busy: the kernel has not returned the netdev yet.
    """
    LOG.info("a stale attachment is released", extra={"device": record.device, "of": record.container})
    outcome = release(host, record, None, None)
    if outcome.problems:
        why = "; ".join(outcome.problems)
        raise HostFault(f"{record.device} is still half with container {record.container}: {why}")
    if outcome.is_pending:
        raise Busy(f"the netdev of {record.device} has not come back from the pod of container {record.container} yet")
    try:
        if ipam := remembered_ipam(host, record):
            ipam.delete()
    except UbError as error:  # its runtime will ask again, and GC too
        LOG.warning("addresses of a stale attachment are not released", extra={"error": str(error)})


@dataclass(slots=True)
class _Attaching:
    """One ADD, with its locks held. ``record`` is what the ledger says of it at any time."""

    host: Host
    request: Request
    node: Node
    device: Device
    previous: Result
    sharing: Sharing
    record: Record = field(init=False)

    def run(self) -> dict[str, Any]:
        conf = self.request.conf
        want = self._wanted()
        seen = self.node.observe_link(want)
        self._refuse(want, seen)
        if ipam := ipam_of(self.host, self.request):
            ipam.require()
        self.host.stop.check()
        self._remember(self._first_record(want, seen.host, ipam))
        try:
            given = self._attach(want, seen, ipam)
            self._set_up_zero_copy(want, given)
            document = results.express(self._result(want, given), conf.version)
            self.host.stop.check()
            self._remember(self._finished(want, given))
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
        moves = conf.netdev == "auto" and self.device.netdev is not None and not is_many_pods
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
        if conf.isolation == "exclusive" and self.sharing is not Sharing.EXCLUSIVE:
            raise Unsupported(_SHARED.format(self.device.id))
        if want.link is None and (want.sending or want.receiving):
            raise InvalidRequest(
                f"runtimeConfig.bandwidth limits a netdev, and {self.device.id} brings none to the pod"
            )
        if want.link is None and not conf.is_chained and conf.netdev != "none":
            raise InvalidRequest(f"{self.device.id} has no netdev to be {want.ifname}: set netdev to none, or chain")
        has_address = bool(conf.ipam_type or self.previous.ips or (seen.host and self.node.host_addresses(seen.host)))
        results.refuse_inexpressible(conf.version, has_address=has_address)
        if not self.device.is_healthy:
            raise NotFound(f"{self.device.id} is not healthy")
        if want.link:
            refuse_taken_name(want, seen)
            plan_link(want, seen)

    def _first_record(self, want: Wanted, link: Link | None, ipam: Ipam | None) -> Record:
        request, device = self.request, self.device
        return Record(
            device.id,
            request.container,
            request.ifname,
            request.conf.name,
            State.ATTACHING,
            request.netns,
            netns.inode(self.node.pod) if self.node.pod is not None else 0,
            self.node.cookie,
            self.host.ledger.boot_id,
            request.nonce,
            time.time(),
            request.pod,
            request.args.get("K8S_POD_UID", ""),
            self._exposed_by_us(),
            _slots(device),
            _original(link, want, self.node.host_addresses(link)) if link else None,
            self.sharing is Sharing.EXCLUSIVE,
            self._limit_before(want),
            _wants_zero_copy(request.conf),
            want.shaper,
            Delegate(ipam.type, dict(ipam.config), _delegate_environ(request)) if ipam else None,
            nodes=device.nodes,
        )

    def _exposed_by_us(self) -> tuple[str, ...]:
        """On a host that shares its devices the pod sees them anyway, and they are not ours to take away."""
        return self.device.members if self.sharing is Sharing.EXCLUSIVE else ()

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

    def _set_up_zero_copy(self, want: Wanted, given: Result) -> None:
        """Offer the pod better ways than TCP over its netdev, if it asked for them."""
        conf, pod = self.request.conf, self.node.pod
        if not self.record.is_zero_copy or pod is None:
            return
        from ubhost import zerocopy  # nobody else pays for it
        from ubhost.paths import Sockets

        ways = zerocopy.Attachment(
            self.request.container,
            self.request.ifname,
            conf.name,
            self.request.pod,
            self.node.provider.kind,
            self.device.id,
            want.ifname if want.link else "",
            tuple(ip["address"] for ip in given.ips),
            tuple(eid for _, _, eid in self.record.eids),
            Sockets(conf.sockets),
            conf.shared_memory,
        )
        zerocopy.ZeroCopy(self.host.roots).attach(ways, pod)

    def _allocate(self) -> None:
        """Take the device from the host's manager, which may tell only then what it is made of.

        The device plugin may have taken it for this pod before, then it is not ours to free.
        """
        if not self.record.is_allocated:
            return
        try:
            self.node.provider.allocate(self.device.id)
        except Busy as error:
            LOG.info("the device is allocated already", extra={"device": self.device.id, "error": str(error)})
            self._remember(replace(self.record, is_allocated=False))
        if not self.device.members:
            self.device = self.node.provider.device(self.device.id)
            self._remember(replace(self.record, members=self.device.members, eids=_slots(self.device)))

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

    def _finished(self, want: Wanted, given: Result) -> Record:
        record = self.record
        link = self.node.link_in_pod(want.ifname) if want.link else None
        known = replace(record.link, pod_index=link.index) if record.link and link else record.link
        said = {"ips": [dict(ip) for ip in given.ips], "routes": [dict(route) for route in given.routes]}
        return replace(record, state=State.ATTACHED, link=known, given=said)


_SHARED = (
    "{} cannot be given to one pod alone: the host shares devices with every network namespace. At boot, before"
    " containers start, run `urma_admin system set dev_sharing off` (RDMA: `rdma system set netns exclusive`), or set"
    " isolation to shared"
)


def _wants_zero_copy(conf: NetConf) -> bool:
    return conf.sockets != "off" or conf.shared_memory > 0


def _slots(device: Device) -> tuple[tuple[str, int, str], ...]:
    return tuple((slot.device, slot.index, str(slot.eid)) for slot in device.eids if not slot.eid.is_zero)


def _original(link: Link, want: Wanted, addresses: tuple[str, ...]) -> OriginalLink:
    return OriginalLink(
        link.name, link.index, link.mtu, link.mac, link.alias, link.qlen, link.is_up, link.altnames, addresses,
        pod_name=want.ifname, group=link.group, is_promisc=link.is_promisc, identity=identity_of(link),
        is_allmulti=link.is_allmulti, has_xdp=link.has_xdp,
    )  # fmt: skip


def _delegate_environ(request: Request) -> dict[str, str]:
    """The part of the environment that DEL needs: no secrets of the runtime go to disk."""
    return {key: value for key, value in request.environ.items() if key.startswith("CNI_") or key == "PATH"}


def _plan_addresses(node: Node, want: Wanted, given: Result) -> tuple[Step, ...]:
    if want.link is None:
        return ()
    routes = routes_of(given)
    seen = node.observe_pod(want.ifname, with_routes=bool(routes))
    return plan_configure(want.ifname, addresses_of(given), routes, seen)


def describe(steps: Iterable[Step]) -> str:
    return "; ".join(repr(step) for step in steps)

"""CHECK: plan again what ADD planned, and expect nothing.

What ADD returned comes back as prevResult, changed by the plugins after us: they may have added routes, changed
the MTU or moved addresses, so only what is ours and still said to be so there is held against the kernel.

Source: containernetworking/cni SPEC.md 1.1.0, "CHECK"; reference/cni.md section 4, H40.
"""

from dataclasses import replace

from cni_ub import results
from cni_ub.addresses import addresses_of, routes_of
from cni_ub.attach import describe
from cni_ub.delegate import ipam_of
from cni_ub.errors import Drifted, UnknownAttachment
from cni_ub.host import Host
from cni_ub.node import Node
from cni_ub.plan import Wanted, plan_attach, plan_configure, plan_rates, read_mark
from cni_ub.protocol import Request
from cni_ub.rates import rates_of
from cni_ub.results import Result
from ubhost.errors import InvalidRequest, NotFound
from ubhost.kernel import netns
from ubhost.model import Eid
from ubhost.provider import EidSlot, Provider
from ubhost.record import Record, State


def check(host: Host, request: Request, pod: int) -> None:
    """Find what is not as ADD left it.

    Raises:
        InvalidRequest: there is no prevResult.
        UnknownAttachment: nothing is recorded for it.
        Drifted: something has changed; it is named.
        DelegateFailed: the IPAM plugin finds fault.
    """
    if request.conf.prev_result is None:
        raise InvalidRequest("CHECK needs prevResult, the result of ADD")
    previous = results.parse(request.conf.prev_result, request.conf.version, "prevResult")
    records = host.ledger.of_attachment(request.container, request.ifname)
    if not records and not _was_passed_through(host, request, pod):
        raise UnknownAttachment(f"{request.container} has no device as {request.ifname}")
    for record in records:
        _check_record(host, request, pod, record, previous)
    if records and (ipam := ipam_of(host, request)):
        ipam.forward("CHECK")


def _was_passed_through(host: Host, request: Request, pod: int) -> bool:
    """Whether ADD had nothing to do: chained, no device named, and no link of ours in the pod."""
    if request.conf.mode == "main" or request.conf.device_id:
        return False
    with Node(host.provider_or_absent(), pod) as node:
        link = node.link_in_pod(request.ifname)
        return link is None or read_mark(link.alias) is None


def _check_record(host: Host, request: Request, pod: int, record: Record, previous: Result) -> None:
    if record.is_damaged or record.state is not State.ATTACHED:
        raise Drifted(f"the attachment of {record.device} is {'damaged' if record.is_damaged else record.state.value}")
    if record.netns_inode != netns.inode(pod):
        raise Drifted(f"{record.device} is in network namespace {record.netns_inode}, not in that of {request.netns}")
    provider = host.provider()
    with Node(provider, pod) as node:
        want = _wanted(request, record, provider, previous)
        try:
            missing = plan_attach(want, node.observe_wanted(want))
        except NotFound as error:
            raise Drifted(f"{want.ifname} is gone from the pod: {error}") from error
        if want.link:
            given = _still_said(record, previous)
            seen = node.observe_pod(want.ifname)
            missing += plan_configure(want.ifname, addresses_of(given), routes_of(given), seen)
            missing += plan_rates(want, node.observe_rates(want))
        if missing:
            raise Drifted(f"{record.device} as {want.ifname}: missing {describe(missing)}")


def _wanted(request: Request, record: Record, provider: Provider, previous: Result) -> Wanted:
    device = provider.device(record.device)
    given = tuple(EidSlot(member, index, Eid.parse(eid)) for member, index, eid in record.eids)
    held = replace(device, members=record.members or device.members, eids=given)
    rates = rates_of(request.conf, provider.kind)
    if record.link is None:
        return Wanted(held, request.ifname, **rates)
    link = record.link
    said = next((entry for entry in previous.interfaces if entry.get("name") == link.pod_name), None)
    if said is None and request.conf.version not in ("0.1.0", "0.2.0"):
        raise Drifted(f"prevResult has no interface {link.pod_name}")
    mtu = said.get("mtu") if said else None
    return Wanted(held, link.pod_name, link.name, mtu, pod_index=link.pod_index, **rates)


def _still_said(record: Record, previous: Result) -> Result:
    """Return what ADD gave as far as prevResult still says it."""
    addresses = {ip["address"] for ip in previous.ips}
    routes = {(route["dst"], route.get("gw")) for route in previous.routes}
    return Result(
        ips=tuple(ip for ip in record.given.get("ips", ()) if ip["address"] in addresses),
        routes=tuple(r for r in record.given.get("routes", ()) if (r["dst"], r.get("gw")) in routes),
    )

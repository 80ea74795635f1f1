"""DEL: all of its work in one call, because runtimes try once; nothing that is missing is an error.

Source: containernetworking/cni SPEC.md 1.1.0, "DEL"; reference/cni.md sections 1.8 and 4, A and C.
"""

import logging

from cni_ub.delegate import ipam_of, ipam_to_release
from cni_ub.errors import DelegateMissing
from cni_ub.host import Host
from cni_ub.node import Node
from cni_ub.protocol import Request
from cni_ub.release import release
from ubhost.errors import HostFault, UbError
from ubhost.record import Record

LOG = logging.getLogger("cni_ub")
PATIENCE = 30.0  # seconds; an ADD that its runtime gave up on may still be at work


class NotReleased(HostFault):
    """Something of an attachment is still there; another DEL may succeed."""


def delete(host: Host, request: Request, pod: int | None) -> None:
    """Detach everything that the pod has through this attachment.

    Raises:
        NotReleased: some of it could not be; everything else is done.
        Busy: another call is at work on the attachment or its device.
    """
    with host.ledger.attachment_lock(request.container, request.ifname, PATIENCE):
        problems: list[str] = []
        records = _records(host, request, pod, problems)
        for record in records:
            with host.ledger.device_lock(record.device, PATIENCE):
                if record.is_damaged or record in host.ledger.of_attachment(request.container, request.ifname):
                    problems += release(host, record, pod, ipam_to_release(host, request, record)).problems
        if not records:  # an ADD that failed early may have left addresses behind
            problems += _delete_addresses(host, request)
    if problems:
        raise NotReleased("; ".join(problems))


def _records(host: Host, request: Request, pod: int | None, problems: list[str]) -> tuple[Record, ...]:
    try:
        records = host.ledger.of_attachment(request.container, request.ifname)
        return records or _unrecorded(host, request, pod)
    except UbError as error:
        problems.append(str(error))
        return ()


def _unrecorded(host: Host, request: Request, pod: int | None) -> tuple[Record, ...]:
    """Find a device whose record is lost by the mark on its link, unless somebody else owns it now.

    The pod can write that mark too: what is not provably a device's netdev is none of our business. If it renamed the
    link, the device is known to be this attachment's only where the pod has no other one that nobody owns.
    """
    if pod is None:
        return ()
    with Node(host.provider_or_absent(), pod) as node:
        netdevs = node.unrecorded_netdevs(request.ifname)
        if not netdevs:
            return ()
        found = {device.id for device in node.provider.devices() if device.netdev in netdevs}
    unowned = found - host.ledger.held().keys()
    if len(unowned) != 1:
        return ()
    device = unowned.pop()
    LOG.warning("the record of an attachment is lost; its link tells what to release", extra={"device": device})
    return (Record(device, request.container, request.ifname, request.conf.name, is_damaged=True),)


def _delete_addresses(host: Host, request: Request) -> list[str]:
    try:
        if ipam := ipam_of(host, request):
            ipam.delete()
    except DelegateMissing as error:  # an ADD with it was refused before it began
        LOG.warning("nothing to release addresses with", extra={"error": str(error)})
    except UbError as error:
        return [str(error)]
    return []

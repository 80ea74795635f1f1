"""GC: release the attachments of a network that are not in the runtime's list.

Source: containernetworking/cni SPEC.md 1.1.0, "GC"; reference/cni.md section 4, H32.
"""

import logging

from cni_ub.delegate import ipam_of, remembered_ipam
from cni_ub.detach import NotReleased
from cni_ub.holding import holds_in_pod
from cni_ub.host import Host
from cni_ub.protocol import Request
from cni_ub.release import release
from cni_ub.stale import PATIENCE
from ubhost.errors import UbError
from ubhost.record import Record

LOG = logging.getLogger("cni_ub")


def collect(host: Host, request: Request) -> None:
    """Release every attachment of this network that is not valid; an absent list says nothing, so nothing is done.

    Raises:
        NotReleased: some could not be released, or the IPAM plugin failed; all others are done.
    """
    valid = request.conf.valid_attachments
    if valid is None:
        return
    problems: list[str] = []
    for record in host.ledger.records():
        if record.attachment not in valid and _is_ours(host, record, request.conf.name):
            problems += release_dead(host, record)
    try:
        if ipam := ipam_of(host, request):
            ipam.forward("GC")
    except UbError as error:
        problems.append(str(error))
    if problems:
        raise NotReleased("; ".join(problems))


def release_dead(host: Host, record: Record) -> list[str]:
    """Release an attachment that nobody will DEL; return what could not be done."""
    LOG.info("a dead attachment is released", extra={"device": record.device, "of": record.container})
    try:
        with (
            host.ledger.attachment_lock(record.container, record.ifname, PATIENCE),
            host.ledger.device_lock(record.device, PATIENCE),
        ):
            if record not in host.ledger.of_attachment(record.container, record.ifname):  # it changed meanwhile
                return []
            return release(host, record, None, remembered_ipam(host, record)).problems
    except UbError as error:
        return [str(error)]


def _is_ours(host: Host, record: Record, network: str) -> bool:
    """A damaged record does not tell its network, so GC of any releases it once no pod can have its device."""
    return not holds_in_pod(host, record) if record.is_damaged else record.network == network

"""Make way for an ADD: take back what dead pods and killed calls left of its attachment and of its device.

Source: design section 4; reference/cni.md section 4, C.
"""

import logging

from cni_ub.delegate import remembered_ipam
from cni_ub.holding import holds_in_pod, lives
from cni_ub.host import Host
from cni_ub.node import Node
from cni_ub.planback import Held, plan_link_release
from cni_ub.protocol import Request
from cni_ub.release import release
from ubhost.apply import apply
from ubhost.errors import Busy, Conflict, HostFault, UbError
from ubhost.kernel import netns
from ubhost.provider import Device, Provider
from ubhost.record import Record, State

LOG = logging.getLogger("cni_ub")
PATIENCE = 10.0  # seconds to wait for an attachment or a device that another call has locked


def heal_own(host: Host, request: Request, pod: int) -> None:
    """Make way for this attachment: it may exist from a call that was killed, or whose agent died under it.

    Raises:
        Conflict: it exists, and its ADD finished.
    """
    for record in host.ledger.of_attachment(request.container, request.ifname):
        finished = record.state is State.ATTACHED and record.nonce != request.nonce
        if finished and record.boot_id == host.ledger.boot_id and record.netns_inode == netns.inode(pod):
            raise Conflict(f"{request.container} has {record.device} as {request.ifname} already; DEL comes before ADD")
        with host.ledger.device_lock(record.device, PATIENCE):
            _release_stale(host, record, pod)


def reclaim(host: Host, device: str) -> tuple[Record, ...]:
    """Take a device back from attachments that are dead; the device is locked, so nobody is at work on it.

    Returns:
        Those of living pods.

    Raises:
        Conflict: a living pod has it, and its record does not tell on what terms.
    """
    living = []
    for record in host.ledger.of_device(device):
        if record.is_damaged and holds_in_pod(host, record):
            raise Conflict(
                f"{device} may still be with container {record.container} as {record.ifname}, whose record is damaged:"
                " its DEL frees it; once its pod is gone so do GC and `ubnode attachments --repair`, and in any case"
                f" `ubnode attachments --gone {record.container}`"
            )
        if record.state is State.ATTACHED and not record.is_damaged and _is_living(host, record):
            living.append(record)
        else:
            _release_stale(host, record, None)
    return tuple(living)


def _is_living(host: Host, record: Record) -> bool:
    """Who shares a device may have nothing to show for it: every namespace sees it where the host shares devices."""
    return lives(host, record) if record.is_shared else holds_in_pod(host, record)


def heal_unrecorded(device: Device, provider: Provider) -> None:
    """Give a netdev its name back that came home from a dead pod, still marked, after its record was lost."""
    if not device.netdev:
        return
    with Node(provider, None) as node:
        if node.link_on_host(device.netdev):
            return
        held = Held(device.id, netdev=device.netdev)
        apply(plan_link_release(held, node.observe_held(held, "")).home, node.do)


def _release_stale(host: Host, record: Record, pod: int | None) -> None:
    """Release what a dead attachment left; ``pod`` may be where.

    Raises:
        HostFault: the device could not be taken back.
        Busy: the kernel has not returned the netdev yet.
    """
    LOG.info("a stale attachment is released", extra={"device": record.device, "of": record.container})
    outcome = release(host, record, pod, None)
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

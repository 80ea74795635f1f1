"""What an attachment holds, and in which pod: as its record says, or where that is damaged, as the host shows.

Source: design section 4; reference/cni.md section 4, A and C.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_interface

from cni_ub.holder import find_holder, leaves_no_trace, strangers
from cni_ub.host import Host
from cni_ub.node import Node
from cni_ub.planback import Held
from cni_ub.steps import SetServiceLevel
from ubhost.errors import InvalidRequest, NotFound, UbError
from ubhost.kernel import netns
from ubhost.model import Eid
from ubhost.provider import Bandwidth, Device, EidSlot, Provider, Sharing
from ubhost.record import Record

LOG = logging.getLogger("cni_ub")


@contextmanager
def node_of(host: Host, record: Record, given: int | None) -> Iterator[Node]:
    """Open the host and the pod of a record; without the pod if its namespace is gone."""
    with ExitStack() as stack:
        pod = _open_pod(host, record, given)
        if pod is not None:
            stack.callback(os.close, pod)
        node = stack.enter_context(Node(host.provider_or_absent(), pod))
        if record.netns_cookie and node.cookie not in (0, record.netns_cookie):  # the inode is used again
            node = stack.enter_context(Node(node.provider, None))
        yield node


def _open_pod(host: Host, record: Record, given: int | None) -> int | None:
    if record.is_damaged:
        return _open_holder(host, record, given)
    if not record.netns_inode:
        return os.dup(given) if given is not None else None
    if record.boot_id != host.ledger.boot_id:
        return None
    if given is not None and netns.inode(given) == record.netns_inode:
        return os.dup(given)
    try:
        pod = netns.open_netns(record.netns)
    except (NotFound, InvalidRequest):
        return netns.find_netns(record.netns_inode)
    if netns.inode(pod) == record.netns_inode:
        return pod
    os.close(pod)
    return netns.find_netns(record.netns_inode)


def _open_holder(host: Host, record: Record, given: int | None) -> int | None:
    """Open the namespace that has the device of a damaged record, whichever that is.

    Where other records of the device are damaged too, only the one that the runtime named is this record's for sure.

    Raises:
        UbError: it cannot be looked for now, and the runtime named none.
    """
    try:
        found = _find_holder(host, record, given)
    except UbError:
        if given is None:
            raise
        found = None
    is_named = found is not None and given is not None and netns.inode(found) == netns.inode(given)
    if found is not None and not is_named and any(other.is_damaged for other in others_of(host, record)):
        os.close(found)
        found = None
    return os.dup(given) if found is None and given is not None else found


def _find_holder(host: Host, record: Record, given: int | None) -> int | None:
    known = frozenset(name for other in host.ledger.records() if not other.is_damaged for name in other.members)
    return find_holder(host.provider(), record.device, given, _namespaces_of_others(host, record), known)


def _namespaces_of_others(host: Host, record: Record) -> frozenset[int]:
    """Return the inodes of those that have the device by a record of their own, of this boot."""
    boot = host.ledger.boot_id
    return frozenset(other.netns_inode for other in others_of(host, record) if other.boot_id == boot)


def held_by(host: Host, record: Record, node: Node) -> Held:
    """Say what an attachment took. For a record that is lost, the provider and the pod itself fill in."""
    if record.is_damaged:
        device = look_at(record, node.provider)
        limit = Bandwidth() if device else None  # what it was before is lost; a free device has none
        members, eids = _members_in(host, record, node, device), _eids_in(node, device)
        return Held(record.device, members, eids, netdev=netdev_of(device), limit=limit)
    limit = Bandwidth(*record.limit_mbps) if record.limit_mbps else None
    if record.boot_id != host.ledger.boot_id:  # it says nothing about the links and EIDs of this boot
        return Held(record.device, limit=limit)
    addresses = tuple(ip_interface(text) for text in record.link.addresses) if record.link else ()
    eids = tuple(EidSlot(member, index, Eid.parse(eid)) for member, index, eid in record.eids)
    levels = _levels_to_restore(record, node.provider)
    return Held(record.device, record.members, eids, record.link, "", limit, levels, record.shaper, addresses)


def _levels_to_restore(record: Record, provider: Provider) -> tuple[SetServiceLevel, ...]:
    """Return what puts the service levels back; of a kernel device that is gone, nothing."""
    steps = [SetServiceLevel(member, priority, level, level) for member, priority, level in record.service_levels]
    try:
        seen = [provider.service_level(step.member, step.priority) for step in steps]
    except UbError:  # the step itself will say so, after the link is home
        return tuple(steps)
    return tuple(step for step, now in zip(steps, seen, strict=True) if now not in (None, step.level))


def netdev_of(device: Device | None) -> str:
    return device.netdev or "" if device else ""


def look_at(record: Record, provider: Provider) -> Device | None:
    try:
        return provider.device(record.device)
    except UbError as error:
        LOG.info("a device cannot be looked at", extra={"device": record.device, "error": str(error)})
        return None


def _members_in(host: Host, record: Record, node: Node, device: Device | None) -> tuple[str, ...]:
    """Return the kernel devices of a lost record: all that the pod sees and no other attachment put there.

    A host that shares its devices shows them to every pod: there they are nobody's to take away.
    """
    if node.pod is None or node.provider.sharing() is not Sharing.EXCLUSIVE:
        return ()
    if device and device.members:
        return device.members
    others = {name for other in host.ledger.of_container(record.container) for name in other.members}
    return tuple(name for name in node.provider.exposed(node.pod) if name not in others)


def _eids_in(node: Node, device: Device | None) -> tuple[EidSlot, ...]:
    """Return the EIDs of a lost record that do not come home with a kernel device: those that only the pod sees."""
    if node.pod is None or device is None or node.provider.sharing() is Sharing.EXCLUSIVE:
        return ()
    seen = node.provider.visible(node.pod)
    return tuple(slot for slot in seen if slot.device in device.members and slot not in device.eids)


def others_of(host: Host, record: Record) -> tuple[Record, ...]:
    """Return the records of the other pods that share a device."""
    return tuple(r for r in host.ledger.of_device(record.device) if r.attachment != record.attachment)


def holds_in_pod(host: Host, record: Record) -> bool:
    """Whether the pod of a record lives and still has something of the device, or nobody can tell that it does not."""
    try:
        if record.is_damaged:
            return _may_be_held(host, record)
        with node_of(host, record, None) as node:
            if node.pod is None:
                return False
            held = held_by(host, record, node)
            seen = node.observe_held(held, record.link.pod_name if record.link else record.ifname)
            seen = node.observe_device(seen, held.members, "", held.eids)
            return seen.is_in_pod or not seen.eids.isdisjoint(held.eids)
    except UbError as error:  # who cannot be looked at is taken to be alive
        LOG.warning("an attachment cannot be looked at", extra={"device": record.device, "error": str(error)})
        return True


def _may_be_held(host: Host, record: Record) -> bool:
    """Whether any pod has the device of a damaged record; where that leaves no trace, whether there is any pod."""
    found = _find_holder(host, record, None)
    if found is not None:
        os.close(found)
        return True
    return leaves_no_trace(host.provider()) and bool(strangers(_namespaces_of_others(host, record)))


def lives(host: Host, record: Record) -> bool:
    """Whether the network namespace of a record is still there."""
    try:
        with node_of(host, record, None) as node:
            return node.pod is not None
    except UbError as error:
        LOG.warning("an attachment cannot be looked at", extra={"device": record.device, "error": str(error)})
        return True

"""Find who has a device whose record is damaged: such a record does not tell, and its pod may well be alive.

What a pod has shows inside its namespace: a kernel device, where the host gives devices to one namespace each; else
EIDs, of which each is in one; and the netdev. Only an RDMA device that every namespace sees leaves no trace.

Source: reference/ub.md section 3; reference/cni.md section 4, H7; ``netns.living`` for where namespaces are looked for.
"""

import os
from collections.abc import Callable, Iterable
from functools import partial

from cni_ub.plan import read_mark
from ubhost.errors import HostFault, NotFound
from ubhost.kernel import netns
from ubhost.kernel.rtnl import Rtnl
from ubhost.provider import Kind, Provider, Sharing


def find_holder(
    provider: Provider, device_id: str, first: int | None, others: frozenset[int], known: frozenset[str]
) -> int | None:
    """Return a new descriptor of the namespace that has something of the device; ``None`` if there is none.

    It looks into every living namespace, so it is for damaged records only.

    Args:
        first: a namespace that may well be the one.
        others: the inodes of namespaces that have it by a record of their own.
        known: the kernel devices that such records name; what is none of them counts where nobody knows what the device
            is made of.

    Raises:
        Busy: the manager of the devices is down.
        HostFault: a namespace cannot be looked at.
    """
    try:
        device = provider.device(device_id)
    except NotFound:  # it left the host, and every namespace with it
        return None
    members = frozenset(device.members)
    shown = provider.exposed if provider.sharing() is Sharing.EXCLUSIVE else partial(_with_eids, provider)

    def holds(fd: int) -> bool:
        there = frozenset(shown(fd))
        return bool(there & members if members else there - known)

    found = _first(holds, first, others)
    if found is not None:
        return found
    netdev = device.netdev
    if netdev is None or _is_here(netdev):
        return None
    return _first(lambda fd: _has_marked(fd, netdev), first, others)


def leaves_no_trace(provider: Provider) -> bool:
    """Whether a pod that has a device looks like one that has none."""
    return provider.kind is Kind.RDMA and provider.sharing() is Sharing.SHARED


def strangers(others: frozenset[int]) -> frozenset[int]:
    """Return the living namespaces that are neither ours nor of ``others``."""
    return netns.living() - {netns.own_inode()} - others


def _with_eids(provider: Provider, fd: int) -> Iterable[str]:
    """Return the kernel devices that a namespace has an EID of."""
    return (slot.device for slot in provider.visible(fd))


def _first(holds: Callable[[int], bool], first: int | None, others: frozenset[int]) -> int | None:
    if first is not None and netns.inode(first) not in others and holds(first):
        return os.dup(first)
    for inode in sorted(strangers(others)):
        fd = netns.find_netns(inode)
        if fd is None:
            continue
        try:
            if holds(fd):
                return os.dup(fd)
        except HostFault:
            if inode in netns.living():  # else it died while we looked
                raise
        finally:
            os.close(fd)
    return None


def _is_here(netdev: str) -> bool:
    with Rtnl(label="the host") as host:
        link = host.link(netdev)
        return link is not None and link.name == netdev


def _has_marked(fd: int, netdev: str) -> bool:
    with Rtnl(fd, label=f"net:[{netns.inode(fd)}]") as there:
        marks = (read_mark(link.alias) for link in there.links())
        return any(mark is not None and mark.name == netdev for mark in marks)

"""Find who has a device whose record is damaged: such a record does not tell, and its pod may well be alive.

Source: reference/cni.md section 4, H7; ``netns.living`` for where namespaces are looked for.
"""

import os
from collections.abc import Callable

from cni_ub.plan import read_mark
from ubhost.errors import HostFault, NotFound
from ubhost.kernel import netns
from ubhost.kernel.rtnl import Rtnl
from ubhost.provider import Provider, Sharing


def find_holder(provider: Provider, device_id: str, first: int | None, others: frozenset[int]) -> int | None:
    """Return a new descriptor of the namespace that sees the device or has its netdev; ``None`` if there is none.

    It looks into every living namespace, so it is for damaged records only.

    Args:
        first: a namespace that may well be the one.
        others: the inodes of namespaces that have it by a record of their own.

    Raises:
        Busy: the manager of the devices is down.
        HostFault: a namespace cannot be looked at.
    """
    try:
        device = provider.device(device_id)
    except NotFound:  # it left the host, and every namespace with it
        return None
    members = frozenset(device.members)
    if members and provider.sharing() is Sharing.EXCLUSIVE:
        found = _first(lambda fd: not members.isdisjoint(provider.exposed(fd)), first, others)
        if found is not None:
            return found
    netdev = device.netdev
    if netdev is None or _is_here(netdev):
        return None
    return _first(lambda fd: _has_marked(fd, netdev), first, others)


def _first(holds: Callable[[int], bool], first: int | None, others: frozenset[int]) -> int | None:
    if first is not None and netns.inode(first) not in others and holds(first):
        return os.dup(first)
    for inode in sorted(netns.living() - {netns.own_inode()} - others):
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

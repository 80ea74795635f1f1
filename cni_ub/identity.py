"""Is this link ours? What proves that a link is the netdev that an attachment took, wherever it is found now.

Source: reference/cni.md section 4 (H18 to H23); rtnetlink(7), IFLA_LINK and IFLA_LINK_NETNSID of a veth.
"""

from cni_ub.plan import read_mark
from cni_ub.planback import Held
from ubhost.kernel.rtnl import Rtnl
from ubhost.model import Link
from ubhost.record import Identity, OriginalLink


def identity_of(link: Link) -> Identity:
    """Return what no pod can change about a link of the host."""
    return Identity(link.kind, link.parent, link.permanent_mac, link.peer if link.peer_netns is None else 0)


class Proofs:
    """Asks the host's side what a pod cannot forge. A namespace is an open descriptor; ``None`` is the host."""

    def __init__(self, host: Rtnl) -> None:
        self._host = host

    def is_ours_in_pod(self, link: Link, held: Held, pod: int | None) -> bool:
        """Whether a link of the pod is the netdev that we brought there.

        A pod with CAP_NET_ADMIN can write any alias and make a link of any number and hardware address, so these
        count only if there is nothing better: a netdev without a device of its own, or an older version's record.
        """
        if held.link is None:
            return self.is_marked(link, held.netdev, pod)
        proven = self._proves(held.link, link, pod)
        if proven is not None:
            return proven
        found = read_mark(link.alias)
        if held.link.pod_index:
            return link.index == held.link.pod_index and (bool(found) or link.mac == held.link.mac)
        return bool(found and found.name == held.link.name and link.mac == held.link.mac)

    def is_ours_elsewhere(self, link: Link, held: Held, netns: int) -> bool:
        """Whether a link is ours in a namespace that the pod made and moved it to."""
        if held.link is None:
            return False
        proven = self._proves(held.link, link, netns)
        if proven is not None:
            return proven
        found = read_mark(link.alias)
        return bool(found and found.name == held.link.name and link.mac == held.link.mac)

    def is_ours_on_host(self, link: Link, held: Held) -> bool:
        """Whether a link of the host is the netdev, as it was or come home under another name."""
        found = read_mark(link.alias)
        if held.link is None:
            return self.is_marked(link, held.netdev, None)
        if not found and link.name == held.link.name == held.netdev:  # never moved, or made anew
            return True
        proven = self._proves(held.link, link, None)
        if proven is not None:
            return proven
        if found:
            return found.name == held.link.name
        return link.mac == held.link.mac and link.index in (held.link.index, held.link.pod_index)

    def is_marked(self, link: Link, netdev: str, netns: int | None) -> bool:
        """Whether a link without a record is ``netdev``: it says so, nobody else is, and no pod can have made it."""
        found = read_mark(link.alias)
        if not found or found.name != netdev or self._host.link(netdev) not in (None, link):
            return False
        if link.peer:
            return self._is_wired(link.peer, link, netns)
        return bool(link.parent or (link.permanent_mac and not link.kind))

    def _proves(self, original: OriginalLink, link: Link, netns: int | None) -> bool | None:
        """Whether a link in ``netns`` (``None``: the host) is the record's; ``None`` if the record cannot tell."""
        identity = original.identity
        if identity is None:
            return None
        if link.kind != identity.kind:
            return False
        if identity.peer:
            return self._is_wired(identity.peer, link, netns)
        if identity.parent or identity.permanent_mac:
            return (link.parent, link.permanent_mac) == (identity.parent, identity.permanent_mac)
        return None

    def _is_wired(self, peer: int, link: Link, netns: int | None) -> bool:
        """Whether the other end of the host's veth number ``peer`` is this link; asked of the host's end."""
        end = self._host.link_at(peer)
        if end is None or end.peer != link.index:
            return False
        return end.peer_netns == (None if netns is None else self._host.nsid(netns))

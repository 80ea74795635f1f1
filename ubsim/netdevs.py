"""The IP side of simulated devices: veth ``ipourma<N>`` in the node's namespace, its peer in the super-node's bridge.

A veth dies with the namespace it is in, where a real ipourma would return to the host; so whoever sees the peer go
lays the cable again (``tend``). The address of an ipourma is its EID; a netdev that comes home has lost it and is
given it again.

Source: reference/ub.md section 2 (ipourma: one netdev per device, IPv6 only, IP == EID, MTU 4094).
"""

import errno
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv6Interface
from itertools import count

from ubhost.kernel.rtnl import Refused
from ubsim.cables import Cables
from ubsim.scenario import Node, SuperNode, Urma

MTU = 4094
BRIDGE = "ubsim"  # with a number; further ones of the same super-node add x1, x2 …
BRIDGE_PORTS = 1000  # Linux allows 1024
FIRST_GROUP = 0x55420000  # link groups of our bridges, by their numbers
PREFIX = 32  # the first word of a bonding EID is the super-node's id


@dataclass(frozen=True, slots=True)
class Netdev:
    node: str
    bonding: str
    name: str  # at home
    peer: str
    address: str  # IPv6 with prefix length
    bridge: str  # where the peer hangs


def number_netdevs(super_node: SuperNode, bridge: str, taken: frozenset[str]) -> tuple[Netdev, ...]:
    """Give every bonding device its netdev, with the lowest numbers that are free in our namespace."""
    numbers = (n for n in count() if not {f"ipourma{n}", f"ubp{n}"} & taken)
    devices = ((node, device) for node in super_node.nodes for device in node.devices)
    return tuple(
        netdev_of(node, device, next(numbers), f"{bridge}x{at // BRIDGE_PORTS}" if at >= BRIDGE_PORTS else bridge)
        for at, (node, device) in enumerate(devices)
    )


def netdev_of(node: Node, device: Urma, number: int, bridge: str) -> Netdev:
    address = IPv6Interface((device.bonding_eid.value, PREFIX))
    return Netdev(node.name, device.bonding, f"ipourma{number}", f"ubp{number}", str(address), bridge)


class Fabric:
    """The bridge of a super-node, in the namespace ``netns`` or ours, and the cables that hang on it."""

    def __init__(self, bridge: str, netns: int | None = None) -> None:
        self._here = Cables(netns, "the super-node")
        self._bridge = bridge
        self._group = FIRST_GROUP + int(bridge.removeprefix(BRIDGE))
        self._indexes: dict[str, int] = {}
        self._lock = threading.Lock()  # one request at a time on the socket

    def close(self) -> None:
        self._here.close()

    def make_bridges(self, netdevs: Iterable[Netdev]) -> None:
        """Make the bridge, and those beside it that the number of netdevs needs, each joined to the first."""
        self._make_bridge(self._bridge)
        for name in sorted({netdev.bridge for netdev in netdevs} - {self._bridge}):
            self._make_bridge(name)
            here, there = f"{name}a", f"{name}b"
            self._here.add_veth(here, there, MTU, self._group)
            for end, bridge in ((here, self._bridge), (there, name)):
                index = self._here.require(end).index
                self._here.set_master(index, self._indexes[bridge])
                self._here.set_up(index, up=True)

    def _make_bridge(self, name: str) -> None:
        self._here.add_bridge(name, self._group)
        self._indexes[name] = self._here.require(name).index
        self._here.set_up(self._indexes[name], up=True)

    def is_laid(self, netdev: Netdev) -> bool:
        with self._lock:
            return self._here.link(netdev.peer) is not None

    def lay(self, netdev: Netdev, home: int | None) -> None:
        """Join ``netdev`` to the bridge; its own end goes to the namespace ``home``, ours if ``None``.

        Raises:
            Refused: the kernel did not.
        """
        with self._lock:
            if netdev.bridge not in self._indexes:
                self._indexes[netdev.bridge] = self._here.require(netdev.bridge).index
            self._here.add_veth(netdev.name, netdev.peer, MTU, self._group)
            peer = self._here.require(netdev.peer)
            self._here.set_master(peer.index, self._indexes[netdev.bridge])
            self._here.set_up(peer.index, up=True)
            if home is not None:
                self._here.move(self._here.require(netdev.name).index, home, netdev.name)

    def cut(self, netdev: Netdev) -> None:
        """Remove a cable, wherever its other end is; it may be gone already."""
        with self._lock:
            link = self._here.link(netdev.peer)
            if link is not None:
                self._here.delete(link.index)

    def set_carrier(self, netdev: Netdev, *, on: bool) -> None:
        """Let the netdev see a working cable, or none."""
        with self._lock:
            link = self._here.link(netdev.peer)
            if link is not None and link.is_up is not on:
                self._here.set_up(link.index, up=on)

    def set_rate(self, netdev: Netdev, mbps: int) -> None:
        """Limit what the netdev receives, in Mb/s; 0 lifts the limit. What it sends, its receiver limits."""
        with self._lock:
            link = self._here.link(netdev.peer)
            if link is not None:
                self._here.limit_rate(link.index, mbps)

    def taken(self) -> frozenset[str]:
        """Return the names of links that cannot be given again."""
        with self._lock:
            return frozenset(link.name for link in self._here.links())

    def remove(self) -> None:
        """Remove the bridge and every cable on it, wherever the other ends are."""
        self._here.delete_group(self._group)


class Home:
    """The netdevs of one node in its own namespace, open as ``netns``, or ours."""

    def __init__(self, netns: int | None, label: str) -> None:
        self._cables = Cables(netns, label)

    def close(self) -> None:
        self._cables.close()

    def settle(self, netdev: Netdev) -> None:
        """A netdev that is at home and lost its address gets it, and is up. One that is away is left alone."""
        try:
            link = self._cables.link(netdev.name)
            if link is None:
                return
            address = IPv6Interface(netdev.address)
            if address in self._cables.addresses(link.index):
                return
            self._cables.set_up(link.index, up=True)
            self._cables.add_address(link.index, address)
        except Refused as refused:
            if refused.code not in (errno.ENODEV, errno.EEXIST):  # it left, or somebody was quicker
                raise

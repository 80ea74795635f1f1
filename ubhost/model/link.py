"""Network interfaces, their routes and rates."""

import ipaddress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """A network interface as the kernel reports it.

    ``netns`` is the path of its namespace, "" for the host's own.
    """

    index: int
    name: str
    netns: str
    is_up: bool = False
    alias: str = ""
    mtu: int = 1500  # bytes
    mac: str = ""
    altnames: tuple[str, ...] = ()
    qlen: int = 1000  # packets
    group: int = 0
    is_promisc: bool = False
    is_allmulti: bool = False
    has_xdp: bool = False  # a BPF program sees its packets first
    kind: str = ""  # of a virtual link; "" for hardware
    parent: str = ""  # "bus/device" of the hardware it belongs to
    permanent_mac: str = ""
    peer: int = 0  # index of a veth's other end, in the namespace ``peer_netns``
    peer_netns: int | None = None  # number that this namespace has for another; ``None`` is itself


Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface
"""An address and the network it is in, as a link carries it."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Route:
    """A unicast route. Without a gateway the destination is on the link. ``None`` leaves a value to the kernel."""

    destination: Network
    gateway: str | None = None
    mtu: int | None = None  # bytes
    advmss: int | None = None  # bytes
    priority: int | None = None
    table: int | None = None
    scope: int | None = None


@dataclass(frozen=True, slots=True)
class Rate:
    """A token bucket. The kernel keeps rates in bytes a second, so ``bits_a_second`` is a multiple of 8 when read."""

    bits_a_second: int
    burst: int  # bytes

    @property
    def bytes_a_second(self) -> int:
        return self.bits_a_second // 8

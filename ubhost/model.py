"""What a UB host looks like: plain values, no input or output.

A value that the host does not tell is ``None``, never a guess. Enumerations keep the kernel's numbers.

Source: reference/ub.md sections 1.2, 2, 4 and 5 (kernel drivers/ub, umdk, Documentation/ABI/testing/sysfs-bus-ub).
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag

from ubhost.errors import InvalidRequest


class Transport(IntEnum):
    UB = 0
    IB = 1
    IP = 2
    SOFTUB = 3
    HNS_UB = 5


class PortState(IntEnum):
    NOP = 0
    DOWN = 1
    INIT = 2
    ARMED = 3
    ACTIVE = 4
    ACTIVE_DEFER = 5


class Mtu(IntEnum):
    """Path MTU as the driver numbers it; ``size`` is in bytes."""

    MTU_256 = 1
    MTU_512 = 2
    MTU_1024 = 3
    MTU_2048 = 4
    MTU_4096 = 5
    MTU_8192 = 6

    @property
    def size(self) -> int:
        return 128 << self.value


class Speed(IntEnum):
    """Speed of a port; ``mbps`` is in megabits a second."""

    SP_10M = 0
    SP_100M = 1
    SP_1G = 2
    SP_2_5G = 3
    SP_5G = 4
    SP_10G = 5
    SP_14G = 6
    SP_25G = 7
    SP_40G = 8
    SP_50G = 9
    SP_100G = 10
    SP_200G = 11
    SP_400G = 12
    SP_800G = 13

    @property
    def mbps(self) -> int:
        return _MBPS[self.value]


_MBPS = (10, 100, 1000, 2500, 5000, 10000, 14000, 25000, 40000, 50000, 100000, 200000, 400000, 800000)


class Width(IntEnum):
    """Lanes of a port, as the driver's bit."""

    X1 = 1
    X2 = 2
    X4 = 4
    X8 = 8
    X16 = 16
    X32 = 32


class TransMode(IntFlag):
    RM = 1
    RC = 2
    UM = 4


_FULL_EID = re.compile(r"(?:[0-9a-f]{4}:){7}[0-9a-f]{4}")  # as sysfs prints it, and so the common case


@dataclass(frozen=True, slots=True, order=True)
class Eid:
    """An entity id of 128 bits. All zero means: no EID in this slot, or another namespace's."""

    value: int

    @classmethod
    def parse(cls, text: str) -> "Eid":
        """Read 8 groups of 4 hex digits, any IPv6 form, or IPv4 (mapped to ``::ffff:a.b.c.d``).

        Raises:
            InvalidRequest: ``text`` is none of these.
        """
        if _FULL_EID.fullmatch(text):
            return cls(int(text.replace(":", ""), 16))
        try:
            address = ipaddress.ip_address(text.strip())
        except ValueError:
            raise InvalidRequest(f"{text!r} is not an EID: expected 8 groups of 4 hex digits") from None
        if isinstance(address, ipaddress.IPv4Address):
            return cls(0xFFFF << 32 | int(address))
        return cls(int(address))

    @classmethod
    def from_words(cls, *words: int) -> "Eid":
        """Compose an EID of four 32-bit words, as UBSE does for bonding devices."""
        value = 0
        for word in words:
            value = value << 32 | word & 0xFFFFFFFF
        return cls(value)

    @property
    def is_zero(self) -> bool:
        return self.value == 0

    @property
    def packed(self) -> bytes:
        return self.value.to_bytes(16, "big")

    @property
    def words(self) -> tuple[int, int, int, int]:
        """The four 32-bit words, the most significant first; see ``from_words``."""
        first, second, third, fourth = (self.value >> shift & 0xFFFFFFFF for shift in (96, 64, 32, 0))
        return first, second, third, fourth

    @property
    def ipv6(self) -> str:
        """The address ipourma gives the netdev: IP == EID, in the usual compressed form."""
        return str(ipaddress.IPv6Address(self.value))

    def __str__(self) -> str:
        """Full text as sysfs prints it: never compressed."""
        digits = f"{self.value:032x}"
        return ":".join(digits[at : at + 4] for at in range(0, 32, 4))


@dataclass(frozen=True, slots=True)
class UrmaPort:
    """``port<index>/`` of a device. Source: ub.md 1.2; today's UDMA fills port 0 only."""

    index: int
    max_mtu: Mtu | None = None
    active_mtu: Mtu | None = None
    state: PortState | None = None
    active_width: Width | None = None
    active_speed: Speed | None = None


@dataclass(frozen=True, slots=True)
class Priority:
    """``priority/priority<index>/``: the service level that a jetty priority uses."""

    index: int
    sl: int | None = None
    tp_type: int | None = None


@dataclass(frozen=True, slots=True)
class UrmaDevice:
    """One entry of ``/sys/class/ubcore``, as seen from the network namespace that read it.

    ``eids[i]`` is the EID in slot ``i``; a zero EID is kept, because slots are addressed by index.
    ``limits`` holds the plain integer attributes (``max_jetty`` …) under the kernel's names.
    ``fault`` says which attribute makes no sense; then no more than name, guid and entity is known.
    """

    name: str
    ubdev: str | None = None
    driver_name: str | None = None
    net_dev: str | None = None
    transport_type: Transport | None = None
    guid: Eid | None = None
    feature: int | None = None
    eids: tuple[Eid, ...] = ()
    dynamic_eid: bool | None = None
    virtualization: bool | None = None
    trans_mode: TransMode | None = None
    port_count: int | None = None
    ports: tuple[UrmaPort, ...] = ()
    priorities: tuple[Priority, ...] = ()
    reserved_jetty_id: tuple[int, int] | None = None
    vendor: int | None = None  # None for bonding devices
    device: int | None = None
    entity: str | None = None  # number of the UbEntity it sits on
    limits: Mapping[str, int] = field(default_factory=dict)
    fault: str | None = None

    @property
    def is_bonding(self) -> bool:
        return self.name.startswith("bonding_dev_")


@dataclass(frozen=True, slots=True)
class EntityPort:
    """``port<index>/`` of a UB entity. ``neighbor`` is the peer's entity number; ``None`` where there is no peer.

    The last five are about lanes that are switched off when idle, in the kernel's words, on physical ports only.
    """

    index: int
    cna: int | None = None
    linkup: bool | None = None
    neighbor: str | None = None
    neighbor_guid: str | None = None
    neighbor_port_idx: int | None = None
    boundary: bool | None = None
    asy_link_width: str | None = None
    glb_qdlws: str | None = None
    rx_qdlws: str | None = None
    tx_qdlws: str | None = None
    qdlws_exec_state: str | None = None


_DIRECT_LINK = re.compile(r"0x([0-9a-f]{1,4}) : 0x([0-9a-f]{1,4}) \[0x([0-9a-f]{1,5})\]")


@dataclass(frozen=True, slots=True)
class DirectLink:
    """One line of ``direct_link``: port here, port there, entity there. Source: ub.md section 4."""

    port: int
    peer_port: int
    peer: str  # entity number

    @classmethod
    def parse(cls, line: str) -> "DirectLink":
        """Read ``0x01 : 0x02 [0x00003]``.

        Raises:
            InvalidRequest: ``line`` is not of that form.
        """
        match = _DIRECT_LINK.fullmatch(line.strip())
        if match is None:
            raise InvalidRequest(f"{line!r} is not a direct link: expected '0x01 : 0x02 [0x00003]'")
        port, peer_port, peer = (int(part, 16) for part in match.groups())
        return cls(port, peer_port, f"{peer:05x}")


@dataclass(frozen=True, slots=True)
class UbEntity:
    """One entry of ``/sys/bus/ub/devices``. Entities are called by their number, 5 hex digits.

    ``fault`` says which attribute makes no sense; then nothing but the number is known.
    """

    number: str
    class_code: int | None = None
    vendor: int | None = None
    device: int | None = None
    type: int | None = None
    guid: str | None = None
    eid: int | None = None
    entity_idx: int | None = None
    tid: int | None = None
    upi: int | None = None
    primary_entity: str | None = None
    primary_cna: int | None = None
    numa: int | None = None  # None where firmware says -1
    direct_links: tuple[str, ...] = ()  # as the kernel prints them; ``peers`` says what they mean
    num_ues: int | None = None  # managing entities only; as sriov_numvfs
    total_ues: int | None = None  # as sriov_totalvfs
    ports: tuple[EntityPort, ...] = ()
    instance: int | None = None  # EID of the bus instance it is bound to
    ubc: str | None = None  # the controller above it
    kref: int | None = None
    match_driver: bool | None = None
    driver_override: str | None = None
    driver: str | None = None  # the driver that is bound to it
    sw_cap: int | None = None  # controllers only: forwarding
    total_entities: int | None = None  # entity 0 only
    mues: tuple[str, ...] = ()  # entity 0 only: managing entities below it
    ues: tuple[str, ...] = ()  # managing entities only: entities below it
    slots: Mapping[int, str] = field(default_factory=dict)  # hot-plug slots and their power state
    fault: str | None = None

    @property
    def peers(self) -> tuple[DirectLink, ...]:
        return tuple(DirectLink.parse(line) for line in self.direct_links)


@dataclass(frozen=True, slots=True)
class HugePages:
    """Hugepages of one size on one NUMA node; sizes in KiB, counts in pages."""

    size_kib: int
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class NumaNode:
    """``distances`` maps the id of each node to the kernel's distance; to itself it is 10."""

    id: int
    cpus: tuple[int, ...] = ()
    memory_total: int | None = None  # bytes
    memory_free: int | None = None  # bytes
    distances: Mapping[int, int] = field(default_factory=dict)
    hugepages: tuple[HugePages, ...] = ()

    @property
    def is_cpuless(self) -> bool:
        """Memory without CPUs, such as memory borrowed from another server of the super-node."""
        return not self.cpus


@dataclass(frozen=True, slots=True)
class BusInstance:
    """One line of ``/sys/bus/ub/instance``."""

    guid: str
    type: int
    eid: int
    upi: int


@dataclass(frozen=True, slots=True)
class UbBus:
    """``/sys/bus/ub`` itself; ``cluster`` tells a super-node from a machine of its own."""

    cluster: bool | None = None
    feature: int | None = None  # one bit a capability
    instances: tuple[BusInstance, ...] = ()


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """An OBMM region, ``obmm_shmdev<id>``. Source: ub.md 6.1.

    ``details`` holds what else ``export_info`` or ``import_info`` say, in the kernel's own words.
    """

    id: int
    type: str | None = None  # "export" or "import"
    size: int | None = None  # bytes
    allow_mmap: bool | None = None
    numa: int | None = None  # imported as this NUMA node
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def node(self) -> str:
        """The device node, below /dev."""
        return f"obmm_shmdev{self.id}"


@dataclass(frozen=True, slots=True)
class MemoryPool:
    """``/sys/kernel/obmm_mempool/obmm-<numa>``: memory set aside for lending. Sizes in bytes."""

    numa: int
    total: int | None = None
    used: int | None = None
    available_cleared: int | None = None
    available_uncleared: int | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """Where the host sits in its super-node, as UBSE tells it."""

    super_node_id: int | None = None
    slot_id: int | None = None
    host_name: str | None = None


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


@dataclass(frozen=True, slots=True)
class UbHost:
    """Everything found on one host. ``faults`` names what is there and makes no sense, outside of single devices."""

    is_ub_platform: bool  # firmware has a UBRT table
    devices: tuple[UrmaDevice, ...] = ()
    entities: tuple[UbEntity, ...] = ()
    numa: tuple[NumaNode, ...] = ()
    shared_memory: tuple[SharedMemory, ...] = ()
    position: Position = Position()
    bus: UbBus = UbBus()
    memory_pools: tuple[MemoryPool, ...] = ()
    faults: tuple[str, ...] = ()

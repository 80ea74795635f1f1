"""URMA devices and their ports; enumerations keep the driver's numbers. Source: reference/ub.md section 1.2."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag

from ubhost.model.eid import Eid


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

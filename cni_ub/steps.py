"""The changes that this plugin makes. Values only; ``cni_ub.doing`` carries them out.

A link is named by the side it is on and by its name there. Each step is one change that the kernel or the driver
makes wholly or not at all; ``Move`` is one too, because who carries it out takes a half-done one back.

Source: style.md section 3.3; reference/ub.md section 3.
"""

from dataclasses import dataclass, replace
from enum import Enum

from ubhost.model import Interface, Rate
from ubhost.model import Route as ModelRoute
from ubhost.provider import Bandwidth, EidSlot


class Side(Enum):
    HOST = "host"
    POD = "pod"


@dataclass(frozen=True, slots=True)
class SetUp:
    at: Side
    name: str
    up: bool

    def undo(self) -> "SetUp":
        return replace(self, up=not self.up)


@dataclass(frozen=True, slots=True)
class SetAlias:
    at: Side
    name: str
    alias: str
    was: str

    def undo(self) -> "SetAlias":
        return replace(self, alias=self.was, was=self.alias)


@dataclass(frozen=True, slots=True)
class SetMtu:
    at: Side
    name: str
    mtu: int  # bytes
    was: int

    def undo(self) -> "SetMtu":
        return replace(self, mtu=self.was, was=self.mtu)


@dataclass(frozen=True, slots=True)
class SetQlen:
    at: Side
    name: str
    qlen: int  # packets
    was: int

    def undo(self) -> "SetQlen":
        return replace(self, qlen=self.was, was=self.qlen)


@dataclass(frozen=True, slots=True)
class SetMac:
    at: Side
    name: str
    mac: str
    was: str

    def undo(self) -> "SetMac":
        return replace(self, mac=self.was, was=self.mac)


@dataclass(frozen=True, slots=True)
class SetGroup:
    at: Side
    name: str
    group: int
    was: int

    def undo(self) -> "SetGroup":
        return replace(self, group=self.was, was=self.group)


@dataclass(frozen=True, slots=True)
class SetPromisc:
    at: Side
    name: str
    on: bool

    def undo(self) -> "SetPromisc":
        return replace(self, on=not self.on)


@dataclass(frozen=True, slots=True)
class SetAllmulti:
    at: Side
    name: str
    on: bool

    def undo(self) -> "SetAllmulti":
        return replace(self, on=not self.on)


@dataclass(frozen=True, slots=True)
class DetachXdp:
    """Take away the BPF programs that a pod left on a link. They are not ours to put back: to undo it is to do it."""

    at: Side
    name: str

    def undo(self) -> "DetachXdp":
        return self


@dataclass(frozen=True, slots=True)
class Altname:
    """Give a link an alternative name, or take it."""

    at: Side
    name: str
    altname: str
    present: bool

    def undo(self) -> "Altname":
        return replace(self, present=not self.present)


@dataclass(frozen=True, slots=True)
class Rename:
    at: Side
    name: str
    to: str

    def undo(self) -> "Rename":
        return replace(self, name=self.to, to=self.name)


@dataclass(frozen=True, slots=True)
class Move:
    """Bring a link to the other side under a new name: one request, because each costs a grace period (15 ms)."""

    at: Side
    name: str
    to: Side
    to_name: str

    def undo(self) -> "Move":
        return Move(self.to, self.to_name, self.at, self.name)


@dataclass(frozen=True, slots=True)
class Address:
    at: Side
    name: str
    address: Interface
    present: bool

    def undo(self) -> "Address":
        return replace(self, present=not self.present)


@dataclass(frozen=True, slots=True)
class Route:
    at: Side
    name: str
    route: ModelRoute
    present: bool

    def undo(self) -> "Route":
        return replace(self, present=not self.present)


@dataclass(frozen=True, slots=True)
class Expose:
    """Make the kernel devices of a device appear in the pod, or vanish from it with all their EIDs."""

    members: tuple[str, ...]
    present: bool

    def undo(self) -> "Expose":
        return replace(self, present=not self.present)


@dataclass(frozen=True, slots=True)
class MoveEids:
    """Give the EIDs of a device to the pod, or take them back; the driver moves them one by one, and none is lost."""

    slots: tuple[EidSlot, ...]
    to: Side

    def undo(self) -> "MoveEids":
        return replace(self, to=Side.HOST if self.to is Side.POD else Side.POD)


@dataclass(frozen=True, slots=True)
class Limit:
    """Set the bandwidth of a device."""

    device: str
    bandwidth: Bandwidth
    was: Bandwidth

    def undo(self) -> "Limit":
        return replace(self, bandwidth=self.was, was=self.bandwidth)


@dataclass(frozen=True, slots=True)
class SetServiceLevel:
    """Map a jetty priority of a kernel device to a service level."""

    member: str
    priority: int
    level: int
    was: int

    def undo(self) -> "SetServiceLevel":
        return replace(self, level=self.was, was=self.level)


@dataclass(frozen=True, slots=True)
class LimitSending:
    """Limit what the pod sends over its link; ``None`` is no limit."""

    name: str
    rate: Rate | None
    was: Rate | None

    def undo(self) -> "LimitSending":
        return replace(self, rate=self.was, was=self.rate)


@dataclass(frozen=True, slots=True)
class LimitReceiving:
    """Limit what the pod receives over its link, by leading it through the ifb ``shaper`` in the pod."""

    name: str
    shaper: str
    rate: Rate | None
    was: Rate | None

    def undo(self) -> "LimitReceiving":
        return replace(self, rate=self.was, was=self.rate)


Setting = SetUp | SetAlias | SetMtu | SetQlen | SetMac | SetGroup | SetPromisc | SetAllmulti | DetachXdp
LinkStep = Setting | Altname | Rename | Move | Address | Route
DeviceStep = Expose | MoveEids | Limit | SetServiceLevel
RateStep = LimitSending | LimitReceiving
Step = LinkStep | DeviceStep | RateStep

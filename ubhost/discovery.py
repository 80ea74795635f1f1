"""Everything that was found out about a host in one look, and how real it is. Pure; ``ubhost.survey`` looks."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ubhost.model import UbHost
from ubhost.provider import Device, Kind, Sharing
from ubhost.rdma.model import RdmaDevice
from ubhost.topology import Topology
from ubhost.ubse.bodies import NumaMemory


class Level(Enum):
    """How real an answer is. A figure of a lower level is never a UB figure."""

    MODEL = "model"
    STAND_IN = "stand-in"  # the simulator
    SOFT_DEVICE = "soft device"  # soft-RoCE and its like
    HARDWARE = "hardware"


@dataclass(frozen=True, slots=True)
class Discovery:
    """``notes`` says what could not be found out, and why."""

    kind: Kind
    level: Level
    host: UbHost
    topology: Topology
    sharing: Sharing | None = None
    devices: tuple[Device, ...] = ()
    memory: tuple[NumaMemory, ...] = ()
    rdma: tuple[RdmaDevice, ...] = ()
    notes: tuple[str, ...] = ()


def level_of(kind: Kind, rdma: Iterable[RdmaDevice]) -> Level:
    """Return how real the answers of a provider are; one soft device makes them soft."""
    if kind is Kind.SIM:
        return Level.STAND_IN
    if kind is Kind.RDMA and any(device.is_soft for device in rdma):
        return Level.SOFT_DEVICE
    return Level.HARDWARE

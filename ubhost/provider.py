"""What the plugins may ask of a UB host, whichever of the three kinds it is.

A *device* here is what a pod is given: on UB the UBSE device ``urma_N`` (a bonding device and its two physical
entities), on an RDMA server one RDMA device. Everything above this line is the same code for all kinds.

Source: design sections 1 and 3; reference/ub.md sections 1.3, 3, 5, 8.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ubhost.model import Eid


class Kind(Enum):
    """Which of the three kinds of machine a result comes from."""

    UBCORE = "ubcore"
    RDMA = "rdma"
    SIM = "sim"


class Sharing(Enum):
    """Who sees a device: every network namespace, or just those it was given to."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"


@dataclass(frozen=True, slots=True)
class EidSlot:
    """An EID and where it lives: slot ``index`` of kernel device ``device``."""

    device: str
    index: int
    eid: Eid


@dataclass(frozen=True, slots=True)
class Device:
    """What can be given to a pod.

    ``members`` are the kernel devices to expose, the bonding device first; ``eids`` all their EIDs, in the order
    in which they are moved; ``netdev`` the IP netdev that belongs to it, by its present name on the host;
    ``nodes`` the device nodes below /dev that an application opens.
    """

    id: str
    members: tuple[str, ...]
    eids: tuple[EidSlot, ...] = ()
    netdev: str | None = None
    numa: int | None = None
    is_healthy: bool = True
    nodes: tuple[str, ...] = ()
    address: str | None = None  # PCI or UB address

    def is_called(self, name: str) -> bool:
        """Whether a user who wrote ``name`` in a configuration means this device."""
        return name in (self.id, self.address) or name in self.members


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Megabits a second; 0 is unlimited."""

    min_mbps: int = 0
    max_mbps: int = 0


class Provider(Protocol):
    """Commands to one host. Every method may raise ``HostFault`` with the driver's own reason as its cause.

    ``netns`` is an open descriptor of a network namespace, so that no path is looked up twice.
    """

    kind: Kind

    def devices(self) -> tuple[Device, ...]:
        """Return every device that could be given to a pod, sorted by id, as the host's own namespace sees it.

        Raises:
            Busy: the manager of the devices (UBSE) is down; they are not gone, so keep what was known of them.
        """

    def device(self, name: str) -> Device:
        """Return the device that a user means who writes ``name`` (see ``Device.is_called``), reading no more.

        Raises:
            NotFound: no device is called so.
            Busy: as ``devices``.
        """

    def sharing(self) -> Sharing: ...

    def expose(self, member: str, netns: int) -> None:
        """Make kernel device ``member`` appear in ``netns``; nothing happens if it is there.

        Raises:
            NotFound: there is no such device.
            Unsupported: the host shares devices with every namespace, or the driver cannot move this one.
        """

    def unexpose(self, member: str, netns: int) -> None:
        """Take ``member`` out of ``netns``; its EIDs return to the physical device. It may be gone already."""

    def expose_all(self, members: tuple[str, ...], netns: int) -> None:
        """As ``expose`` for each, in order, looking once before and once after.

        Raises:
            NotFound, Unsupported: as ``expose``; nothing was exposed then.
            HostFault: some may be exposed; ``unexpose_all`` takes them back.
        """

    def unexpose_all(self, members: tuple[str, ...], netns: int) -> None:
        """As ``unexpose`` for each, in order, looking once before and once after."""

    def move_eid(self, slot: EidSlot, netns: int) -> None:
        """Give one EID to ``netns``. ``member`` must have been exposed there first.

        Raises:
            NotFound: no such slot, or the slot is empty.
            Conflict: the device is not exposed in that namespace.
        """

    def move_eids(self, slots: tuple[EidSlot, ...], netns: int) -> None:
        """Give many EIDs to ``netns``, in order, and look once whether they are there.

        Raises:
            NotFound, Conflict: as ``move_eid``; nothing has moved then.
            HostFault: some may have moved; to un-expose their devices brings them back.
        """

    def visible(self, netns: int) -> tuple[EidSlot, ...]:
        """Return the non-zero EIDs that a process inside ``netns`` reads, of the devices exposed there."""

    def exposed(self, netns: int) -> tuple[str, ...]:
        """Return the kernel devices that a process inside ``netns`` sees, sorted."""

    def allocate(self, device_id: str) -> None:
        """Reserve the device with the host's own manager (UBSE), where there is one.

        Raises:
            Busy: somebody else holds it.
            NotFound: no such device.
        """

    def free(self, device_id: str) -> None:
        """Give the device back; nothing happens if it is free, or gone.

        Raises:
            Busy: the manager is down: try again later.
        """

    def bandwidth(self, device_id: str) -> Bandwidth: ...

    def set_bandwidth(self, device_id: str, bandwidth: Bandwidth) -> None:
        """Limit the device; ``Bandwidth()`` lifts the limit.

        Raises:
            InvalidRequest: not multiples of 8, or min > max.
            Unsupported: the device is shared, or the provider has no native limit.
        """

    def service_level(self, member: str, priority: int) -> int | None:
        """Return the service level of a jetty priority; ``None`` if the driver does not tell, or has none."""

    def set_service_level(self, member: str, service_level: int, priority: int) -> None:
        """Map jetty priority 0 to 15 of a kernel device to a service level."""

"""The provider of ordinary RDMA servers: RoCE cards, InfiniBand, soft-RoCE.

A device is one RDMA device, and it is in one network namespace: to *expose* it is to move it. Its GIDs come with it
and cannot be moved one by one. There is nobody to allocate from, and no native limit; the netdev's traffic is shaped
above this line.

Source: Linux drivers/infiniband/core/device.c (rdma_dev_change_netns).
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ubhost.errors import HostFault, NotFound, Unsupported
from ubhost.kernel.netns import OWN, inode
from ubhost.provider import Bandwidth, Device, EidSlot, Kind, Sharing
from ubhost.rdma.model import RdmaDevice
from ubhost.rdma.netlink import RdmaNetlink, Refused
from ubhost.rdma.sysfs import read_rdma
from ubhost.roots import Roots
from ubhost.sysfs.attributes import Folder

HOW_TO_SWITCH = (
    "this host shows its RDMA devices in every network namespace (netns shared); switch it with"
    " `rdma system set netns exclusive` at boot, before the container runtime starts, or ask for isolation 'shared'"
)


class RdmaProvider:
    """See ``ubhost.provider.Provider``. Holds nothing open."""

    kind = Kind.RDMA

    def __init__(self, roots: Roots, netlink: RdmaNetlink) -> None:
        self._sys = Folder(roots.sys)
        self._netlink = netlink

    def devices(self) -> tuple[Device, ...]:
        return tuple(_device(device) for device in read_rdma(self._sys))

    def device(self, name: str) -> Device:
        for device in self.devices():
            if device.is_called(name):
                return device
        raise NotFound(f"there is no device called {name!r} on this host")

    def sharing(self) -> Sharing:
        return Sharing.SHARED if self._netlink.is_shared() else Sharing.EXCLUSIVE

    def expose(self, member: str, netns: int) -> None:
        if self.sharing() is Sharing.SHARED:
            raise Unsupported(f"{member}: {HOW_TO_SWITCH}")
        if member in self.exposed(netns):
            return
        here = self._netlink.devices()
        if member not in here:
            raise NotFound(f"there is no RDMA device {member!r} in this namespace")
        self._move(member, here[member], netns, inside=None)
        if member not in self.exposed(netns):
            raise HostFault(f"{member} was moved, but it does not appear in net:[{inode(netns)}]")

    def unexpose(self, member: str, netns: int) -> None:
        """Bring the device home. In shared mode there is nothing to take back."""
        if self.sharing() is Sharing.SHARED:
            return
        there = self._netlink.devices(netns)
        if member not in there:
            return
        with _own_namespace() as home:
            self._move(member, there[member], home, inside=netns)
        if member not in self._netlink.devices():
            raise HostFault(f"{member} was moved back, but it does not appear here")

    def expose_all(self, members: tuple[str, ...], netns: int) -> None:
        for member in members:
            self.expose(member, netns)

    def unexpose_all(self, members: tuple[str, ...], netns: int) -> None:
        for member in members:
            self.unexpose(member, netns)

    def move_eid(self, slot: EidSlot, netns: int) -> None:
        raise Unsupported(f"{slot.device}: the GIDs of an RDMA device move with it, not one by one")

    def move_eids(self, slots: tuple[EidSlot, ...], netns: int) -> None:
        for slot in slots:
            self.move_eid(slot, netns)

    def visible(self, netns: int) -> tuple[EidSlot, ...]:
        """RDMA has no EIDs that belong to a namespace."""
        return ()

    def exposed(self, netns: int) -> tuple[str, ...]:
        return tuple(sorted(self._netlink.devices(netns)))

    def allocate(self, device_id: str) -> None:
        """Nobody manages RDMA devices; it must only be here."""
        if device_id not in (device.name for device in read_rdma(self._sys)):
            raise NotFound(f"there is no RDMA device {device_id!r} on this host")

    def free(self, device_id: str) -> None:
        pass

    def bandwidth(self, device_id: str) -> Bandwidth:
        return Bandwidth()

    def set_bandwidth(self, device_id: str, bandwidth: Bandwidth) -> None:
        if bandwidth != Bandwidth():
            raise Unsupported(f"{device_id}: an RDMA device has no native limit that can be set from here")

    def service_level(self, member: str, priority: int) -> int | None:
        return None

    def set_service_level(self, member: str, service_level: int, priority: int) -> None:
        raise Unsupported(f"{member}: the service level of an RDMA connection is the application's choice")

    def _move(self, member: str, index: int, to: int, *, inside: int | None) -> None:
        try:
            self._netlink.move(index, to, inside=inside)
        except Refused as refusal:
            if refusal.code != errno.EOPNOTSUPP:
                raise
            raise Unsupported(
                f"{member}: its driver cannot move between network namespaces (soft-RoCE cannot);"
                " ask for isolation 'shared' on a host with `rdma system set netns shared`"
            ) from refusal


def _device(device: RdmaDevice) -> Device:
    return Device(
        id=device.name,
        members=(device.name,),
        netdev=next((port.netdev for port in device.ports if port.netdev), None),
        numa=device.numa,
        is_healthy=device.is_up,
        nodes=device.nodes,
        address=device.address,
    )


@contextmanager
def _own_namespace() -> Iterator[int]:
    fd = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)

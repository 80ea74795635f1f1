"""The namespace rules of the ubcore driver, as a pure state machine.

A *physical device* belongs to one network namespace, its home. *Logical devices* of the same name make it appear
in others. Every EID has a namespace of its own. Each method returns the next state, or raises ``Refused`` with
the driver's errno and changes nothing; where the driver answers 0 to a request that has no effect, so do we.

A namespace is its inode number, as stat() of ``/proc/PID/ns/net`` tells it; one that is named in a request lives,
so it counts from then on. The in-memory provider for tests and
the daemon of a simulated node both run on this one machine.

Source: reference/ub.md section 3 (kernel drivers/ub/urma/ubcore/ubcore_device.c).
"""

import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ubhost.model import Eid

MAX_NAME = 64  # bytes with the terminating NUL, UBCORE_MAX_DEV_NAME
MAX_EIDS = 1024  # URMA_MAX_EID_CNT
PRIORITIES = 16
ZERO = Eid(0)


class Refused(OSError):
    """The driver said no: ``errno`` as the kernel returns it, ``strerror`` as it logs it."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One entry of a device's EID table; a zero EID is an invalid entry."""

    eid: Eid
    netns: int


@dataclass(frozen=True, slots=True)
class Device:
    """One registered device: where it lives, where else it appears, whose its EIDs are."""

    name: str
    home: int
    slots: tuple[Slot, ...] = ()
    logical: frozenset[int] = frozenset()
    max_eids: int = MAX_EIDS
    is_dynamic: bool = False
    service_levels: tuple[int, ...] = tuple(range(PRIORITIES))

    def is_in(self, netns: int) -> bool:
        return netns == self.home or netns in self.logical

    def seen_from(self, netns: int, *, all_eids: bool = False) -> tuple[Eid, ...]:
        """Return what ``eids/eid<N>`` reads inside ``netns``: another namespace's EID is all zero."""
        return tuple(slot.eid if all_eids or slot.netns == netns else ZERO for slot in self.slots)

    def with_eids_of(self, netns: int, to: int) -> "Device":
        return replace(self, slots=tuple(replace(s, netns=to) if s.netns == netns else s for s in self.slots))


@dataclass(frozen=True, slots=True)
class Ubcore:
    """Everything the driver of one host knows. ``others`` are the living namespaces besides ``init``."""

    init: int
    is_shared: bool = True  # the driver's own default
    is_eid_shared: bool = False
    others: frozenset[int] = frozenset()
    devices: Mapping[str, Device] = field(default_factory=lambda: MappingProxyType({}))

    def visible(self, netns: int) -> Iterator[Device]:
        """Yield the devices that a process inside ``netns`` finds in sysfs, by name."""
        for _, device in sorted(self.devices.items()):
            if device.is_in(netns):
                yield device

    def namespaces_of(self, *names: str) -> frozenset[int]:
        """Return the namespaces that any of these devices is exposed to."""
        return frozenset(n for name in names if name in self.devices for n in self.devices[name].logical)

    def plug(self, name: str, eids: tuple[Eid, ...], *, max_eids: int = MAX_EIDS) -> "Ubcore":
        """Register a device in the init namespace; in shared mode every living namespace gets a logical one."""
        if not name or len(name.encode()) >= MAX_NAME or not len(eids) <= max_eids <= MAX_EIDS:
            raise Refused(errno.EINVAL, f"cannot register {name!r} with {len(eids)} EIDs")
        if name in self.devices:
            raise Refused(errno.EEXIST, f"device {name} is registered")
        logical = self.others if self.is_shared else frozenset[int]()
        return self._with(Device(name, self.init, tuple(Slot(eid, self.init) for eid in eids), logical, max_eids))

    def unplug(self, name: str) -> "Ubcore":
        self._device(name, errno.ENODEV)
        return replace(self, devices={key: device for key, device in self.devices.items() if key != name})

    def open_netns(self, netns: int) -> "Ubcore":
        """A namespace came to life (or was first heard of). Shared mode: each device appears in it."""
        if netns == self.init or netns in self.others:
            return self
        state = replace(self, others=self.others | {netns})
        if not self.is_shared:
            return state
        added = (replace(device, logical=device.logical | {netns}) for device in self.devices.values())
        return state._with(*added)

    def close_netns(self, netns: int) -> "Ubcore":
        """A namespace died. Exclusive: devices and EIDs come home. Shared: its EIDs are lost."""
        if netns not in self.others:
            return self
        close = self._lose if self.is_shared else self._bring_home
        state = replace(self, others=self.others - {netns})
        return state._with(*(close(device, netns) for device in self.devices.values()))

    def set_sharing(self, *, shared: bool) -> "Ubcore":
        """SET_DEV_NS_MODE. Setting the present mode again is no change, so it is never refused."""
        if shared == self.is_shared:
            return self
        self._refuse_while_others_live()
        return replace(self, is_shared=shared)

    def set_eid_sharing(self, *, shared: bool) -> "Ubcore":
        """SET_EID_NS_MODE, held to the rule of SET_DEV_NS_MODE: no source says that it is looser."""
        if shared == self.is_eid_shared:
            return self
        self._refuse_while_others_live()
        return replace(self, is_eid_shared=shared)

    def set_home(self, name: str, netns: int) -> "Ubcore":
        """SET_DEV_NS: the physical device moves, all its EIDs with it, and its logical devices go."""
        if self.is_shared:
            raise Refused(errno.EPERM, "cannot set device to ns under shared ns mode")
        device = self._device(name, errno.EINVAL)
        if device.home == netns:
            return self
        return self.open_netns(netns)._with(_moved(device, netns))

    def expose(self, name: str, netns: int) -> "Ubcore":
        """EXPOSE_DEV_NS: a logical device in ``netns``; no change where the device is already."""
        state = self.open_netns(netns)
        device = state._device(name, errno.ENODEV)
        if device.is_in(netns):
            return state
        return state._with(replace(device, logical=device.logical | {netns}))

    def unexpose(self, name: str, netns: int) -> "Ubcore":
        """UNEXPOSE_DEV_NS: the logical device goes, the EIDs of ``netns`` return to the device's home."""
        state = self.open_netns(netns)
        device = state._device(name, errno.ENODEV)
        without = replace(device, logical=device.logical - {netns})
        return state._with(without.with_eids_of(netns, device.home))

    def set_eid_netns(self, name: str, index: int, netns: int) -> "Ubcore":
        """SET_DEV_EID_NS: the device must be in ``netns`` before its EID. An empty slot is accepted and stays empty."""
        state = self.open_netns(netns)
        device = state._device(name, errno.EPERM)
        if not device.is_in(netns):
            raise Refused(errno.EPERM, f"no logical device {name} in net:[{netns}]")
        if not 0 <= index < device.max_eids:
            raise Refused(errno.EINVAL, f"eid index {index} of {name} is not below {device.max_eids}")
        slots = tuple(replace(s, netns=netns) if at == index else s for at, s in enumerate(device.slots))
        return state._with(replace(device, slots=slots))

    def set_service_level(self, name: str, priority: int, level: int) -> "Ubcore":
        """SET_SL: jetty priority 0 to 15 uses service level ``level``, 0 to 15."""
        device = self._device(name, errno.ENODEV)
        if not (0 <= priority < PRIORITIES and 0 <= level < PRIORITIES):
            raise Refused(errno.EINVAL, f"priority {priority} or service level {level} of {name} is not below 16")
        levels = tuple(level if at == priority else old for at, old in enumerate(device.service_levels))
        return self._with(replace(device, service_levels=levels))

    def set_eid_mode(self, name: str, *, dynamic: bool) -> "Ubcore":
        """SET_EID_MODE: a change of mode flushes every EID of the device."""
        device = self._device(name, errno.EPERM)
        if device.is_dynamic == dynamic:
            return self
        flushed = tuple(Slot(ZERO, self.init) for _ in device.slots)
        return self._with(replace(device, is_dynamic=dynamic, slots=flushed))

    def ask_for_eid(self, name: str, index: int, fabric: Callable[[], Eid], netns: int | None = None) -> "Ubcore":
        """ADD_EID: the fabric assigns the EID of a slot to ``netns``, or to the device's home."""
        device = self._assigned_by_hand(name)
        state = self if netns is None else self.open_netns(netns)
        if netns is not None and not (state.is_shared or state.devices[name].home == netns):
            raise Refused(errno.EPERM, "invalid net ns")
        if not 0 <= index < device.max_eids:
            raise Refused(errno.EINVAL, f"eid index {index} of {name} is not below {device.max_eids}")
        return state.add_eid(name, index, fabric(), device.home if netns is None else netns)

    def delete_eid(self, name: str, index: int) -> "Ubcore":
        """DEL_EID."""
        self._assigned_by_hand(name)
        return self.lose_eid(name, index)

    def add_eid(self, name: str, index: int, eid: Eid, netns: int) -> "Ubcore":
        """An EID comes into a slot, whoever brings it."""
        device = self._device(name, errno.EPERM)
        if not 0 <= index < device.max_eids or eid.is_zero:
            raise Refused(errno.EINVAL, f"cannot put EID {eid} into slot {index} of {name}")
        return self._with(_with_slot(device, index, Slot(eid, netns), self.init))

    def lose_eid(self, name: str, index: int) -> "Ubcore":
        """The fabric took the EID back: the slot becomes invalid."""
        device = self._device(name, errno.EPERM)
        if not 0 <= index < len(device.slots):
            raise Refused(errno.EINVAL, f"{name} has no EID in slot {index}")
        return self._with(_with_slot(device, index, Slot(ZERO, self.init), self.init))

    def check_access(self, name: str, index: int, netns: int) -> None:
        """Raise what creating a context would: the device and the EID must both be the caller's namespace's."""
        device = self._device(name, errno.ENODEV)
        if not 0 <= index < MAX_EIDS:
            raise Refused(errno.EINVAL, f"eid index {index} of {name} is not below {MAX_EIDS}")
        if not device.is_in(netns):
            raise Refused(errno.EPERM, f"{name} is not accessible by current ns")
        slot = device.slots[index] if index < len(device.slots) else None
        if slot is None or slot.eid.is_zero or (slot.netns != netns and not self.is_eid_shared):
            raise Refused(errno.EPERM, "eid is not accessible by current ns")

    def _assigned_by_hand(self, name: str) -> Device:
        device = self._device(name, errno.EPERM)
        if device.is_dynamic:
            raise Refused(errno.EPERM, f"{name} takes its EIDs from the fabric; set it to static first")
        return device

    def _device(self, name: str, missing: int) -> Device:
        try:
            return self.devices[name]
        except KeyError:
            raise Refused(missing, f"failed to find device {name!r}") from None

    def _with(self, *changed: Device) -> "Ubcore":
        return replace(self, devices={**self.devices, **{device.name: device for device in changed}})

    def _refuse_while_others_live(self) -> None:
        if self.others:
            raise Refused(errno.EPERM, "Failed to modify ns mode with existing ns")

    def _bring_home(self, device: Device, netns: int) -> Device:
        if device.home == netns:
            return _moved(device, self.init)
        return replace(device, logical=device.logical - {netns}).with_eids_of(netns, device.home)

    def _lose(self, device: Device, netns: int) -> Device:
        slots = tuple(Slot(ZERO, self.init) if s.netns == netns else s for s in device.slots)
        return replace(device, logical=device.logical - {netns}, slots=slots)


def _moved(device: Device, netns: int) -> Device:
    slots = tuple(replace(slot, netns=netns) for slot in device.slots)
    return replace(device, home=netns, logical=frozenset(), slots=slots)


def _with_slot(device: Device, index: int, slot: Slot, init: int) -> Device:
    slots = list(device.slots)
    slots += [Slot(ZERO, init)] * (index + 1 - len(slots))
    slots[index] = slot
    return replace(device, slots=tuple(slots))

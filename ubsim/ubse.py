"""What UBSE keeps about URMA devices, as a pure state machine: who holds which, its bandwidth, its health.

Each method returns the next state, or raises ``Rejected`` with UBSE's own code and changes nothing.

The reference says that each resource is owned by the user who created it, and so ``Ubse`` has it by default. The
heads of UBSE that we could read (2025-12 to 2026-07) keep no owner of a URMA device: DEV_ALLOC answers everybody,
DEV_FREE does nothing and always succeeds. ``has_owners=False`` is that UBSE; a client must be right with both.

Source: reference/ub.md sections 5 and 8 (ubse src/controllers/urma, ubs_engine_urma.h).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ubhost.model import Eid
from ubhost.provider import Bandwidth
from ubhost.ubse.status import Status

NAME_MAX = 32  # bytes with the terminating NUL, UBS_URMA_NAME_MAX
GRANULE_MBPS = 8  # UBSE hands megabytes a second to the fabric


class Rejected(Exception):
    """UBSE said no, with a status word."""

    def __init__(self, code: Status, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class Urma:
    """One device that UBSE hands out: a bonding device over two entities.

    ``holder`` is the uid that allocated it, ``None`` while it is free. ``is_unique`` devices have one holder and
    may be limited; shared ones may be neither held nor limited.
    """

    name: str
    bonding: str
    members: tuple[str, str]
    eid: Eid
    hw_res_id: int = 0
    is_unique: bool = True
    is_healthy: bool = True
    is_active: bool = True
    holder: int | None = None
    bandwidth: Bandwidth | None = None


@dataclass(frozen=True, slots=True)
class Ubse:
    devices: Mapping[str, Urma] = field(default_factory=lambda: MappingProxyType({}))
    has_owners: bool = True

    def named(self, name: str) -> Urma:
        if len(name.encode()) >= NAME_MAX:
            raise Rejected(Status.ENGINE_OUT_OF_RANGE, f"name {name!r} is longer than {NAME_MAX - 1} bytes")
        if name not in self.devices:
            raise Rejected(Status.ENGINE_NOT_EXIST, f"there is no device {name!r}")
        return self.devices[name]

    def allocate(self, name: str, uid: int) -> "Ubse":
        """DEV_ALLOC: one holder at a time, and nobody twice."""
        device = self.named(name)
        if not device.is_active:
            raise Rejected(Status.ENGINE_ALLOCATE, f"{name} is not active")
        if not self.has_owners:
            return self
        if device.holder is not None:
            raise Rejected(Status.ENGINE_EXISTED, f"{name} is held by uid {device.holder}")
        return self._with(replace(device, holder=uid))

    def free(self, name: str, uid: int) -> "Ubse":
        """DEV_FREE: by the holder. The limit set on the device goes with it."""
        if not self.has_owners:
            return self
        device = self._held(name, uid)
        return self._with(replace(device, holder=None, bandwidth=None))

    def limit(self, name: str, bandwidth: Bandwidth, uid: int) -> "Ubse":
        """QOS_SET: megabits a second in steps of 8, min not above max, exclusive devices only."""
        device = self._limitable(name, uid)
        low, high = bandwidth.min_mbps, bandwidth.max_mbps
        if low % GRANULE_MBPS or high % GRANULE_MBPS or low > high or not high:
            raise Rejected(
                Status.ENGINE_OUT_OF_RANGE,
                f"{name}: {low} to {high} Mb/s are not steps of {GRANULE_MBPS}, min <= max, max > 0",
            )
        return self._with(replace(device, bandwidth=bandwidth))

    def limit_of(self, name: str) -> Bandwidth:
        """QOS_GET: a device without a limit has none to tell."""
        device = self.named(name)
        if device.bandwidth is None:
            raise Rejected(Status.ENGINE_NOT_EXIST, f"{name} has no bandwidth set")
        return device.bandwidth

    def unlimit(self, name: str, uid: int) -> "Ubse":
        """QOS_RESET: nothing to reset is no error."""
        return self._with(replace(self._limitable(name, uid), bandwidth=None))

    def activate(self, name: str) -> "Ubse":
        return self._with(replace(self.named(name), is_active=True))

    def changed(self, device: Urma) -> "Ubse":
        """Add or replace a device: hot plug, health."""
        return self._with(device)

    def without(self, name: str) -> "Ubse":
        return replace(self, devices={key: device for key, device in self.devices.items() if key != name})

    def _held(self, name: str, uid: int) -> Urma:
        device = self.named(name)
        if device.holder is None:
            raise Rejected(Status.ENGINE_NOT_EXIST, f"{name} is not allocated")
        self._refuse_stranger(device, uid)
        return device

    def _limitable(self, name: str, uid: int) -> Urma:
        device = self.named(name)
        if not device.is_unique:
            raise Rejected(Status.NOT_SUPPORTED, f"{name} is shared: only exclusive devices can be limited")
        self._refuse_stranger(device, uid)
        return device

    def _refuse_stranger(self, device: Urma, uid: int) -> None:
        if device.holder not in (None, uid):
            raise Rejected(Status.ENGINE_AUTH_FAILED, f"{device.name} is held by uid {device.holder}, not by uid {uid}")

    def _with(self, device: Urma) -> "Ubse":
        return replace(self, devices={**self.devices, device.name: device})

"""Whether a device can be given to a pod, and if not, why. Pure.

A device is sick when UBSE says so, when one of its kernel devices is gone or has a port that is down, or when an EID
that it should have is lost. An EID that a pod holds reads as zero on the host; that is no loss.

Source: reference/ub.md 1.2 (port state; only port 0 is filled in by today's driver), 3 and 5; issue 6, item 7.
"""

from collections.abc import Iterator, Mapping

from ubhost.model import PortState, UrmaDevice
from ubhost.provider import Device

TRUSTED_PORT = 0
_NOT_DOWN = (PortState.ACTIVE, PortState.ACTIVE_DEFER, PortState.NOP)  # NOP: the driver does not tell


def faults(device: Device, kernel: Mapping[str, UrmaDevice] | None, *, held: bool) -> tuple[str, ...]:
    """Return everything that is wrong with a device, a phrase each; nothing if it is well.

    Args:
        kernel: what the URMA driver shows in the host's own namespace; ``None`` on a host without it.
        held: a pod has the device, and with it the EIDs.
    """
    found = () if kernel is None else tuple(_seen(device, kernel, held=held))
    if not found and not device.is_healthy:
        return (f"{device.id} is reported unhealthy",)
    return found


def _seen(device: Device, kernel: Mapping[str, UrmaDevice], *, held: bool) -> Iterator[str]:
    for name in device.members:
        member = kernel.get(name)
        if member is None:
            yield f"{name} is gone"
            continue
        if member.fault:
            yield f"{name} cannot be read: {member.fault}"
            continue
        state = next((port.state for port in member.ports if port.index == TRUSTED_PORT), None)
        if state is not None and state not in _NOT_DOWN:
            yield f"port {TRUSTED_PORT} of {name} is {state.name}"
        if not held and (not member.eids or member.eids[0].is_zero):
            yield f"{name} has lost its EID"

"""Devices as a real node has them, for a provider in memory."""

from ubhost.model import Eid
from ubhost.provider import Device, EidSlot

PORTS = 9  # of an IO die; one EID each, behind the primary one


def fake_devices(count: int = 2, *, super_node: int = 7, slot: int = 1) -> tuple[Device, ...]:
    """Return devices like a real node's: ``urma_1`` is ``bonding_dev_1`` over two entities, 21 EIDs.

    ``bonding_dev_0`` with its entities is the host's own and not among them.
    """
    return tuple(_device(number, super_node, slot) for number in range(1, count + 1))


def _device(number: int, super_node: int, slot: int) -> Device:
    bonding, first, second = f"bonding_dev_{number}", f"udma{2 * number}", f"udma{2 * number + 1}"
    fe = (2 * number, 2 * number + 1)
    eids = [EidSlot(bonding, 0, Eid.from_words(super_node, slot, *fe))]
    for member, entity in ((first, fe[0]), (second, fe[1])):
        eids += [EidSlot(member, at, Eid.from_words(0x42454944, slot, entity, at)) for at in range(1 + PORTS)]
    return Device(
        id=f"urma_{number}",
        members=(bonding, first, second),
        eids=tuple(eids),
        netdev=f"ipourma{number}",
        numa=(number - 1) % 2,
        nodes=(f"uburma/{bonding}", f"uburma/{first}", f"uburma/{second}", "ummu"),
        address=f"{number:05x}",
    )

"""URMA devices: ``/sys/class/ubcore``, as the network namespace sees it that the folder belongs to.

Source: reference/ub.md section 1.2 (kernel drivers/ub/urma/ubcore/ubcore_cdev_file.c).
"""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress

from ubhost.model import Eid, Mtu, PortState, Priority, Speed, TransMode, Transport, UrmaDevice, UrmaPort, Width
from ubhost.sysfs.attributes import Folder, Unreadable

CONTROL_NODE = "ubcore"  # beside the devices, but not one
MAX_EIDS = 1024  # URMA_MAX_EID_CNT
MAX_PORTS = 256
PRIORITIES = 16
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")

LIMITS = (
    "max_eid_cnt", "max_upi_cnt", "max_jfc", "max_jfs", "max_jfr", "max_jetty", "max_jetty_grp",
    "max_jetty_in_jetty_grp", "max_jfc_depth", "max_jfs_depth", "max_jfr_depth", "max_jfs_inline_size", "max_jfs_sge",
    "max_jfs_rsge", "max_jfr_sge", "max_msg_size", "max_read_size", "max_write_size", "max_cas_size", "max_swap_size",
    "max_fetch_and_add_size", "max_fetch_and_sub_size", "max_fetch_and_and_size", "max_fetch_and_or_size",
    "max_fetch_and_xor_size", "max_atomic_size", "max_rc_outstd_cnt", "atomic_feat", "congestion_ctrl_alg", "ceq_cnt",
    "utp_cnt", "max_tp_in_tpg", "page_size_cap", "max_oor_cnt", "mn", "max_netaddr_cnt", "ue_cnt", "fe_cnt",
    "sub_trans_mode_cap",
)  # fmt: skip
"""Attributes that are plain numbers, decimal or after 0x, whatever the generation of the driver."""


def read_devices(folder: Folder) -> tuple[UrmaDevice, ...]:
    """Return every device of the class folder, by name.

    A device with an attribute that makes no sense has a ``fault``: it must not hide the others.

    Raises:
        Unreadable: a name makes no sense.
    """
    return tuple(_readable(name, folder, _device) for name in device_names(folder))


def read_identities(folder: Folder) -> tuple[UrmaDevice, ...]:
    """Return every device with no more than what tells which one it is: guid (or first EID) and entity.

    Raises:
        Unreadable: a name makes no sense.
    """
    return tuple(_readable(name, folder, _identity) for name in device_names(folder))


def read_brief(folder: Folder, names: Iterable[str] | None = None) -> tuple[UrmaDevice, ...]:
    """Return devices (all, or those named) with EIDs, port states, netdev and entity: a tenth of the reads.

    Raises:
        Unreadable: a name makes no sense.
    """
    there = device_names(folder)
    wanted = there if names is None else [name for name in names if name in there]
    return tuple(_readable(name, folder, _brief) for name in wanted)


def _readable(name: str, folder: Folder, read: Callable[[str, Folder], UrmaDevice]) -> UrmaDevice:
    try:
        return read(name, folder)
    except Unreadable as error:
        guid = None
        with suppress(Unreadable):
            guid = (folder / name).eid("guid")  # it tells to which bonding device this one belongs
        return UrmaDevice(name, guid=guid, entity=_entity(name, folder), fault=str(error))


def device_names(folder: Folder) -> tuple[str, ...]:
    names = [name for name in folder.names() if name != CONTROL_NODE]
    for name in names:
        if not NAME.fullmatch(name):
            raise Unreadable(f"{folder.path}/{name}: not a device name")
    return tuple(names)


def read_eids(device: Folder) -> tuple[Eid, ...]:
    """Return the EID table: index is slot; zero where the slot is empty or another namespace's.

    Drivers up to openEuler 24.03 have ``eid<N>/eid`` where later ones have ``eids/eid<N>``.
    """
    slots = [(slot, device / "eids", f"eid{slot}") for slot, _ in (device / "eids").numbered("eid", MAX_EIDS)]
    if not slots:
        slots = [(slot, folder, "eid") for slot, folder in device.numbered("eid", MAX_EIDS)]
    table: list[Eid] = []
    for slot, folder, name in slots:
        table += [Eid(0)] * (slot - len(table))
        table.append(folder.eid(name) or Eid(0))
    return tuple(table)


def _identity(name: str, parent: Folder) -> UrmaDevice:
    guid = (parent / name).eid("guid") or next(iter(read_eids(parent / name)), None)
    return UrmaDevice(name, guid=guid, entity=_entity(name, parent))


def _brief(name: str, parent: Folder) -> UrmaDevice:
    folder = parent / name
    return UrmaDevice(
        name=name,
        net_dev=folder.text("net_dev"),
        guid=folder.eid("guid"),
        eids=read_eids(folder),
        ports=tuple(
            UrmaPort(index, state=port.enum("state", PortState)) for index, port in folder.numbered("port", MAX_PORTS)
        ),
        entity=_entity(name, parent),
    )


def _device(name: str, parent: Folder) -> UrmaDevice:
    folder = parent / name
    return UrmaDevice(
        name=name,
        ubdev=folder.text("ubdev"),
        driver_name=folder.text("driver_name"),
        net_dev=folder.text("net_dev"),
        transport_type=folder.enum("transport_type", Transport),
        guid=folder.eid("guid"),
        feature=folder.number("feature"),
        eids=read_eids(folder),
        dynamic_eid=folder.flag("dynamic_eid"),
        virtualization=folder.flag("virtualization"),
        trans_mode=folder.flags("trans_mode", TransMode),
        port_count=folder.number("port_count"),
        ports=tuple(_port(index, port) for index, port in folder.numbered("port", MAX_PORTS)),
        priorities=tuple(
            Priority(index, priority.number("sl"), priority.number("tp_type"))
            for index, priority in (folder / "priority").numbered("priority", PRIORITIES)
        ),
        reserved_jetty_id=_reserved_jetty_id(folder),
        vendor=(folder / "device").hexadecimal("vendor"),
        device=(folder / "device").hexadecimal("device"),
        entity=_entity(name, parent),
        limits={name: value for name in LIMITS if (value := folder.number(name)) is not None},
    )


def _port(index: int, folder: Folder) -> UrmaPort:
    return UrmaPort(
        index=index,
        max_mtu=folder.enum("max_mtu", Mtu),
        active_mtu=folder.enum("active_mtu", Mtu),
        state=folder.enum("state", PortState),
        active_width=folder.enum("active_width", Width),
        active_speed=folder.enum("active_speed", Speed),
    )


def _reserved_jetty_id(folder: Folder) -> tuple[int, int] | None:
    """``min-max``; an older driver has two attributes."""
    text = folder.text("reserved_jetty_id")
    if text is None:
        low, high = folder.number("reserved_jetty_id_min"), folder.number("reserved_jetty_id_max")
        return None if low is None or high is None else (low, high)
    low_text, dash, high_text = text.partition("-")
    if not (dash and low_text.isdecimal() and high_text.isdecimal()):
        raise Unreadable(f"{folder.path}/reserved_jetty_id: {text[:80]!r} makes no sense: expected min-max")
    return int(low_text), int(high_text)


def _entity(name: str, parent: Folder) -> str | None:
    """Find the UB entity in the way from the class to the device.

    Only the links are looked at, never followed: the way passes the entity's own folder, ``.../00002/udma.0/...``.
    """
    way = f"{parent.link(name) or ''}/{(parent / name).link('device') or ''}"
    numbers = [part for part in way.split("/") if len(part) == 5 and _is_hexadecimal(part)]
    return numbers[-1] if numbers else None


def _is_hexadecimal(text: str) -> bool:
    return all(digit in "0123456789abcdef" for digit in text)

"""Entities of the UB bus: ``/sys/bus/ub``.

Source: reference/ub.md section 4 (kernel Documentation/ABI/testing/sysfs-bus-ub; drivers/ub/ubus/{sysfs,port}.c).
"""

import re

from ubhost.errors import InvalidRequest
from ubhost.model import BusInstance, DirectLink, EntityPort, UbBus, UbEntity
from ubhost.sysfs.attributes import Folder, Unreadable, entity_number

MAX_PORTS = 256
NO_NEIGHBOR = "No Neighbor"
UNKNOWN_NUMA = frozenset({-1, 0xFF, 0xFFFF, 0xFFFFFFFF})  # the kernel prints -1 with %#04x
NUMBER = re.compile(r"[0-9a-f]{5}")
INSTANCE = re.compile(r"guid:\s*(\S+)\s+type:\s*(\S+)\s+eid:\s*(\S+)\s+upi:\s*(\S+)")


def read_bus(folder: Folder) -> UbBus:
    """Return what the bus says of itself.

    Raises:
        Unreadable: an attribute makes no sense.
    """
    feature = folder.lines("ub_feature")[:1]
    try:
        instances = tuple(_instance(line) for line in folder.lines("instance") if not line.startswith("count"))
        bits = int(feature[0], 16) if feature else None
    except ValueError as error:
        raise Unreadable(f"{folder.path}: {error}") from error
    return UbBus(folder.flag("cluster"), bits, instances)


def _instance(line: str) -> BusInstance:
    match = INSTANCE.search(line)
    if match is None:
        raise ValueError(f"instance {line[:80]!r} makes no sense: expected guid, type, eid and upi")
    guid, kind, eid, upi = match.groups()
    return BusInstance(guid, *(int(value, 16) for value in (kind, eid, upi)))


def read_entities(folder: Folder) -> tuple[UbEntity, ...]:
    """Return every entity below ``devices``, by number; one with an attribute that makes no sense has a ``fault``.

    Raises:
        Unreadable: a name is not 5 hex digits.
    """
    names = (folder / "devices").names()
    for name in names:
        if not NUMBER.fullmatch(name):
            raise Unreadable(f"{folder.path}/devices/{name}: not an entity number of 5 hex digits")
    return tuple(_readable(name, folder / "devices" / name) for name in names)


def _readable(number: str, folder: Folder) -> UbEntity:
    try:
        return _entity(number, folder)
    except Unreadable as error:
        return UbEntity(number, fault=str(error))


def _entity(number: str, folder: Folder) -> UbEntity:
    return UbEntity(
        number=number,
        class_code=folder.hexadecimal("class_code"),
        vendor=folder.hexadecimal("vendor"),
        device=folder.hexadecimal("device"),
        type=folder.number("type"),
        guid=folder.text("guid"),
        eid=folder.number("eid"),
        entity_idx=folder.number("entity_idx"),
        tid=folder.number("tid"),
        upi=folder.number("upi"),
        primary_entity=folder.entity("primary_entity"),
        primary_cna=folder.number("primary_cna"),
        numa=read_entity_numa(folder),
        direct_links=_direct_links(folder),
        num_ues=folder.number("ub_numues"),
        total_ues=folder.number("ub_totalues"),
        ports=tuple(_port(index, port) for index, port in folder.numbered("port", MAX_PORTS)),
        instance=folder.number("instance"),
        ubc=folder.entity("ubc"),
        kref=folder.number("kref"),
        match_driver=folder.flag("match_driver"),
        driver_override=_unless(folder.text("driver_override"), "(null)"),
        driver=(folder.link("driver") or "").rpartition("/")[2] or None,
        sw_cap=folder.number("sw_cap"),
        total_entities=folder.number("ub_total_entities"),
        mues=_numbers(folder, "mue_list"),
        ues=_numbers(folder, "ue_list"),
        slots={
            index: power
            for index, slot in folder.numbered("slot", MAX_PORTS)
            if (power := slot.text("power")) is not None
        },
    )


def read_entity_numa(folder: Folder) -> int | None:
    """Return the NUMA node of one entity; ``None`` where firmware does not know it."""
    numa = folder.number("numa")
    if numa is None or numa in UNKNOWN_NUMA:
        return None
    if not 0 <= numa < 1024:
        raise Unreadable(f"{folder.path}/numa: {numa} is not a NUMA node")
    return numa


def _direct_links(folder: Folder) -> tuple[str, ...]:
    lines = folder.lines("direct_link")
    try:
        for line in lines:
            DirectLink.parse(line)
    except InvalidRequest as error:
        raise Unreadable(f"{folder.path}/direct_link: {error}") from error
    return lines


def _numbers(folder: Folder, name: str) -> tuple[str, ...]:
    try:
        return tuple(entity_number(part) for line in folder.lines(name) for part in line.split())
    except ValueError as error:
        raise Unreadable(f"{folder.path}/{name}: {error}") from error


def _port(index: int, folder: Folder) -> EntityPort:
    has_neighbor = folder.text("neighbor") != NO_NEIGHBOR
    has_peer_port = folder.text("neighbor_port_idx") != NO_NEIGHBOR
    return EntityPort(
        index=index,
        cna=folder.number("cna"),
        linkup=folder.flag("linkup"),
        neighbor=folder.entity("neighbor") if has_neighbor else None,
        neighbor_guid=_unless(folder.text("neighbor_guid"), NO_NEIGHBOR),
        neighbor_port_idx=folder.number("neighbor_port_idx") if has_peer_port else None,
        boundary=folder.flag("boundary"),
        asy_link_width=folder.text("asy_link_width"),
        glb_qdlws=folder.text("glb_qdlws"),
        rx_qdlws=folder.text("rx_qdlws"),
        tx_qdlws=folder.text("tx_qdlws"),
        qdlws_exec_state=folder.text("qdlws_exec_state"),
    )


def _unless(text: str | None, nothing: str) -> str | None:
    return None if text == nothing else text

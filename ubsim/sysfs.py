"""URMA devices and UB entities as the files of sysfs and /dev. Pure: from ``ubhost.model`` values to entries.

A value that is ``None`` has no file. What ubhost reads back from a written tree is the host it was written from.

Source: reference/ub.md sections 1.2, 1.3 and 4; kernel drivers/ub/ubus/{sysfs,port,instance}.c and
drivers/ub/urma/ubcore/ubcore_cdev_file.c.
"""

from collections.abc import Iterator

from ubhost.model import EntityPort, UbEntity, UbHost, UrmaDevice
from ubsim.memory_tree import numa_entries, pool_entries, region_entries
from ubsim.tree import CharDevice, Entry, File, Link
from ubsim.values import hexadecimal, number, present

CLASS = "sys/class/ubcore"
VIRTUAL = "sys/devices/virtual/ubcore"  # where the entries of the class point to
BUS = "sys/bus/ub"
BUS_DEVICES = "sys/devices/ub"
NO_NEIGHBOR = "No Neighbor"
WRITABLE = ("congestion_ctrl_alg", "reserved_jetty_id")
FEATURES = (
    "UB Memory Borrowing(Non Cacheable)", "UB Memory Borrowing(Cacheable)", "UB Memory Sharing(Non Cacheable)",
    "UB Memory Sharing(Cacheable)", "URMA RTP-ROI", "URMA RTP-ROT", "URMA RTP-ROL", "URMA CTP-ROI", "URMA CTP-ROT",
    "URMA CTP-ROL", "URMA CTP-UNO", "URMA UTP-UNO",
)  # fmt: skip


def entries(host: UbHost) -> Iterator[Entry]:
    """Yield everything that the tree of ``host`` holds."""
    if host.is_ub_platform:
        yield File("sys/firmware/acpi/tables/UBRT", "UBRT", 0o400)
    for device in host.devices:
        yield from device_entries(device)
    yield from bus_entries(host)
    yield from numa_entries(host.numa)
    for region in host.shared_memory:
        yield from region_entries(region)
    for pool in host.memory_pools:
        yield from pool_entries(pool)
    yield from (CharDevice("dev/ubcore", 0o666), CharDevice("dev/ubagg", 0o666))
    yield from (CharDevice("dev/ummu/tid", 0o600), CharDevice("dev/obmm", 0o600))


def device_entries(device: UrmaDevice) -> Iterator[Entry]:
    """One URMA device: its class entry and its character device."""
    base = f"{VIRTUAL}/{device.name}"
    yield Link(f"{CLASS}/{device.name}", base)
    yield CharDevice(f"dev/uburma/{device.name}", 0o666)
    for name, text in _attributes(device):
        is_fixed = name not in (*WRITABLE, "dynamic_eid", "net_dev")
        yield File(f"{base}/{name}", "" if text == "" else f"{text}\n", 0o644 if name in WRITABLE else 0o444, is_fixed)
    yield from (File(f"{base}/eids/eid{at}", f"{eid}\n") for at, eid in enumerate(device.eids))
    for port in device.ports:
        numbers = ("max_mtu", "active_mtu", "state", "active_width", "active_speed")
        yield from present(f"{base}/port{port.index}", {n: number(getattr(port, n)) for n in numbers})
    for priority in device.priorities:
        yield from present(f"{base}/priority/priority{priority.index}", {"sl": priority.sl})
        yield from present(f"{base}/priority/priority{priority.index}", {"tp_type": priority.tp_type}, is_fixed=True)
    if device.entity is not None:
        yield Link(f"{base}/device", f"{BUS_DEVICES}/{device.entity}")
    else:
        ids = {"vendor": hexadecimal(device.vendor, 4), "device": hexadecimal(device.device, 4)}
        yield from present(f"{base}/device", ids, is_fixed=True)


def _attributes(device: UrmaDevice) -> Iterator[tuple[str, object]]:
    flags = {True: "true", False: "false", None: None}
    values: dict[str, object] = {
        "ubdev": device.ubdev,
        "driver_name": device.driver_name,
        "net_dev": device.net_dev or "",
        "transport_type": number(device.transport_type),
        "guid": device.guid,
        "feature": None if device.feature is None else f"0x{device.feature:x}",
        "dynamic_eid": number(device.dynamic_eid),
        "virtualization": flags[device.virtualization],
        "trans_mode": number(device.trans_mode),
        "port_count": device.port_count,
        "reserved_jetty_id": None if device.reserved_jetty_id is None else "{}-{}".format(*device.reserved_jetty_id),
        **{name: f"0x{limit:x}" if name == "page_size_cap" else str(limit) for name, limit in device.limits.items()},
    }
    return ((name, value) for name, value in values.items() if value is not None)


def bus_entries(host: UbHost) -> Iterator[Entry]:
    """``/sys/bus/ub`` itself, and each entity on it."""
    bus = host.bus
    yield from present(BUS, {"cluster": number(bus.cluster)}, is_fixed=True)
    if bus.feature is not None:
        lines = [f"0x{bus.feature:016x}"]
        lines += [f"{name}{'+' if bus.feature >> at & 1 else '-'}" for at, name in enumerate(FEATURES)]
        yield File(f"{BUS}/ub_feature", "".join(f"{line}\n" for line in lines))
    if bus.instances:
        count = f"0x{len(bus.instances):x}"
        lines = [f"count {count}, from 0x0, show {count}"]
        lines += [f"guid:{i.guid} type:{i.type:x} eid:{i.eid:05x} upi:{i.upi:04x}" for i in bus.instances]
        yield File(f"{BUS}/instance", "".join(f"{line}\n" for line in lines), 0o644)
    for entity in host.entities:
        yield from entity_entries(entity)


def entity_entries(entity: UbEntity) -> Iterator[Entry]:
    base = f"{BUS_DEVICES}/{entity.number}"
    yield Link(f"{BUS}/devices/{entity.number}", base)
    constant: dict[str, object] = {
        "class_code": hexadecimal(entity.class_code, 4),
        "vendor": hexadecimal(entity.vendor, 4),
        "device": hexadecimal(entity.device, 4),
        "type": hexadecimal(entity.type, 1),
        "guid": entity.guid,
        "eid": entity.eid,
        "entity_idx": entity.entity_idx,
        "tid": entity.tid,
        "upi": hexadecimal(entity.upi, 2),
        "instance": hexadecimal(entity.instance, 3),
        "primary_entity": _entity(entity.primary_entity),
        "ubc": _entity(entity.ubc),
        "primary_cna": hexadecimal(entity.primary_cna, 4),
        "numa": "-1" if entity.numa is None else hexadecimal(entity.numa, 2),
        "kref": entity.kref,
        "sw_cap": entity.sw_cap,
        "ub_totalues": entity.total_ues,
        "ub_total_entities": entity.total_entities,
    }
    yield from present(base, constant, is_fixed=True)
    for name, lines in (("direct_link", entity.direct_links), ("mue_list", entity.mues), ("ue_list", entity.ues)):
        yield File(f"{base}/{name}", "".join(f"{line}\n" for line in lines))
    changing: dict[str, object] = {
        "ub_numues": entity.num_ues,
        "match_driver": None if entity.match_driver is None else str(entity.match_driver).lower(),
        "driver_override": "(null)" if entity.driver_override is None else entity.driver_override,
    }
    yield from present(base, changing, mode=0o644)
    if entity.driver is not None:
        yield File(f"{BUS}/drivers/{entity.driver}/bind", "", 0o200)
        yield Link(f"{base}/driver", f"{BUS}/drivers/{entity.driver}")
    for slot, power in entity.slots.items():
        yield from present(f"{base}/slot{slot}", {"power": power}, mode=0o644)
    for port in entity.ports:
        yield from port_entries(entity.number, port)


def _entity(name: str | None) -> str | None:
    """An entity's number in the text of another's attribute: short, with a prefix."""
    return None if name is None else hexadecimal(int(name, 16), 3)


def port_entries(entity: str, port: EntityPort) -> Iterator[Entry]:
    values: dict[str, object] = {
        "cna": hexadecimal(port.cna, 4),
        "linkup": number(port.linkup),
        "boundary": hexadecimal(number(port.boundary), 1),
        "neighbor": NO_NEIGHBOR if port.neighbor is None else port.neighbor,
        "neighbor_guid": NO_NEIGHBOR if port.neighbor_guid is None else port.neighbor_guid,
        "neighbor_port_idx": NO_NEIGHBOR if port.neighbor_port_idx is None else port.neighbor_port_idx,
    }
    yield from present(f"{BUS_DEVICES}/{entity}/port{port.index}", values)
    yield File(f"{BUS_DEVICES}/{entity}/port{port.index}/port_reset", "", 0o200, is_fixed=True)

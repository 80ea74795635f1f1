"""Hypothesis strategies for UB hosts: everything a sysfs tree can say, within what the kernel can print."""

from dataclasses import replace

from hypothesis import strategies as st

from ubhost.model import (
    BusInstance,
    Eid,
    EntityPort,
    HugePages,
    MemoryPool,
    Mtu,
    NumaNode,
    PortState,
    Priority,
    SharedMemory,
    Speed,
    TransMode,
    Transport,
    UbBus,
    UbEntity,
    UbHost,
    UrmaDevice,
    UrmaPort,
    Width,
)
from ubhost.sysfs.urma import LIMITS

u8, u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
words = st.from_regex(r"\A[a-z][a-z0-9_]{0,9}\Z")
guids = st.from_regex(r"\A[0-9a-f]{4}-[0-9a-f]{4}-0-1-000000-[0-9a-f]{16}\Z")
numbers = st.integers(1, 0xFFFFF).map("{:05x}".format)
eids = st.one_of(st.just(Eid(0)), st.builds(Eid, st.integers(0, 2**128 - 1)))
flags = st.booleans()


def maybe(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | strategy


urma_ports = st.builds(
    UrmaPort,
    index=st.integers(0, 8),
    max_mtu=maybe(st.sampled_from(Mtu)),
    active_mtu=maybe(st.sampled_from(Mtu)),
    state=st.sampled_from(PortState),
    active_width=maybe(st.sampled_from(Width)),
    active_speed=maybe(st.sampled_from(Speed)),
)
priorities = st.builds(Priority, st.integers(0, 15), u8, maybe(u8))
devices = st.builds(
    UrmaDevice,
    name=st.from_regex(r"\A(udma|bonding_dev_)[0-9]{1,3}\Z"),
    ubdev=maybe(words),
    driver_name=maybe(words),
    net_dev=maybe(words),
    transport_type=maybe(st.sampled_from(Transport)),
    guid=maybe(eids),
    feature=maybe(u32),
    eids=st.lists(eids, max_size=4).map(tuple),
    dynamic_eid=maybe(flags),
    virtualization=maybe(flags),
    trans_mode=maybe(st.integers(0, 7).map(TransMode)),
    port_count=maybe(u8),
    ports=st.lists(urma_ports, max_size=2, unique_by=lambda p: p.index).map(
        lambda ports: tuple(sorted(ports, key=lambda p: p.index))
    ),
    priorities=st.lists(priorities, max_size=2, unique_by=lambda p: p.index).map(
        lambda found: tuple(sorted(found, key=lambda p: p.index))
    ),
    reserved_jetty_id=maybe(st.tuples(u32, u32)),
    limits=st.dictionaries(st.sampled_from(LIMITS), u64, max_size=4),
)

entity_ports = st.builds(
    EntityPort,
    index=st.integers(0, 20),
    cna=maybe(u16),
    linkup=maybe(flags),
    neighbor=maybe(numbers),
    neighbor_guid=maybe(guids),
    neighbor_port_idx=maybe(u8),
    boundary=maybe(flags),
)
direct_links = st.builds(
    "0x{:02x} : 0x{:02x} [0x{:03x}]".format, st.integers(0, 20), st.integers(0, 20), st.integers(1, 0xFFFFF)
)
entities = st.builds(
    UbEntity,
    number=numbers,
    class_code=maybe(u16),
    vendor=maybe(u16),
    device=maybe(u16),
    type=maybe(st.integers(0, 15)),
    guid=maybe(guids),
    eid=maybe(st.integers(0, 0xFFFFF)),
    entity_idx=maybe(u16),
    tid=maybe(u32),
    upi=maybe(u16),
    primary_entity=maybe(numbers),
    primary_cna=maybe(u16),
    numa=maybe(st.integers(0, 254)),
    direct_links=st.lists(direct_links, max_size=2).map(tuple),
    num_ues=maybe(u8),
    total_ues=maybe(u8),
    ports=st.lists(entity_ports, max_size=2, unique_by=lambda p: p.index).map(
        lambda ports: tuple(sorted(ports, key=lambda p: p.index))
    ),
    instance=maybe(st.integers(0, 0xFFFFF)),
    ubc=maybe(numbers),
    kref=maybe(u8),
    match_driver=maybe(flags),
    driver_override=maybe(words),
    driver=maybe(words),
    sw_cap=maybe(u8),
    total_entities=maybe(u16),
    mues=st.lists(numbers, max_size=2).map(tuple),
    ues=st.lists(numbers, max_size=2).map(tuple),
    slots=st.dictionaries(st.integers(0, 9), st.sampled_from(["on", "off", "poweron", "poweroff"]), max_size=1),
)


@st.composite
def numa_nodes(draw: st.DrawFn) -> tuple[NumaNode, ...]:
    """Nodes with gaps in their ids, some without CPUs, each CPU on one node."""
    ids = sorted(draw(st.sets(st.integers(0, 40), max_size=4)))
    owners = draw(st.lists(st.sampled_from(ids or [0]), max_size=8))
    pages = st.sets(st.sampled_from([2048, 1048576, 64])).map(sorted)
    return tuple(
        NumaNode(
            id=id_,
            cpus=tuple(cpu for cpu, owner in enumerate(owners) if owner == id_),
            memory_total=draw(st.integers(0, 2**40).map(lambda kib: kib * 1024)),
            memory_free=draw(st.integers(0, 2**40).map(lambda kib: kib * 1024)),
            distances={other: 10 if other == id_ else draw(st.integers(11, 255)) for other in ids},
            hugepages=tuple(HugePages(size, draw(u16), draw(u16)) for size in draw(pages)),
        )
        for id_ in ids
    )


pools = st.builds(MemoryPool, st.integers(0, 40), u64, maybe(u64), maybe(u64), maybe(u64))


@st.composite
def regions(draw: st.DrawFn) -> SharedMemory:
    kind = draw(st.sampled_from(["export", "import"]))
    names = ("tokenid", "uba", "deid") if kind == "export" else ("pa", "scna", "dcna", "seid", "deid", "preimport")
    return SharedMemory(
        id=draw(st.integers(0, 10**6)),
        type=kind,
        size=draw(st.integers(1, 1024)) << 21,
        allow_mmap=draw(flags),
        numa=draw(st.none() | st.integers(0, 40)) if kind == "import" else None,
        details=draw(st.dictionaries(st.sampled_from(names), u32.map(hex), max_size=3)),
    )


@st.composite
def hosts(draw: st.DrawFn) -> UbHost:
    """A device either sits on an entity, and then has that one's ids, or has ids of its own or none."""
    on_bus = sorted(draw(st.lists(entities, max_size=3, unique_by=lambda e: e.number)), key=lambda e: e.number)
    found = draw(st.lists(devices, max_size=3, unique_by=lambda d: d.name))
    placed = []
    for device in sorted(found, key=lambda d: d.name):
        entity = draw(st.sampled_from([None, *on_bus]))
        ids = (draw(maybe(u16)), draw(maybe(u16))) if entity is None else (entity.vendor, entity.device)
        number = entity.number if entity else None
        placed.append(_placed(device, ids, number))
    instances = st.lists(st.builds(BusInstance, guids, st.integers(0, 15), u16, u16), max_size=2).map(tuple)
    return UbHost(
        is_ub_platform=draw(flags),
        devices=tuple(placed),
        entities=tuple(on_bus),
        numa=draw(numa_nodes()),
        shared_memory=tuple(
            sorted(draw(st.lists(regions(), max_size=2, unique_by=lambda r: r.id)), key=lambda r: r.id)
        ),
        bus=UbBus(draw(maybe(flags)), draw(maybe(u64)), draw(instances)),  # type: ignore[arg-type]
        memory_pools=tuple(sorted(draw(st.lists(pools, max_size=2, unique_by=lambda p: p.numa)), key=lambda p: p.numa)),
    )


def _placed(device: UrmaDevice, ids: tuple[object, object], entity: str | None) -> UrmaDevice:
    return replace(device, vendor=ids[0], device=ids[1], entity=entity)  # type: ignore[arg-type]

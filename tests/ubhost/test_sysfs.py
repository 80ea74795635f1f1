"""A host read from a tree whose formats are written by hand from reference/ub.md sections 1.2, 4 and 6.1."""

import re
import shutil
from pathlib import Path

import pytest

from ubhost.model import (
    BusInstance,
    DirectLink,
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
    UrmaPort,
    Width,
)
from ubhost.roots import Roots
from ubhost.sysfs import Unreadable, read_host

RECORDED = {
    "firmware/acpi/tables/UBRT": "UBRT",
    "class/ubcore/ubcore/dev": "510:0",
    "class/ubcore/bonding_dev_1/ubdev": "bonding_dev_1",
    "class/ubcore/bonding_dev_1/transport_type": "0",
    "class/ubcore/bonding_dev_1/net_dev": "ipourma1",
    "class/ubcore/bonding_dev_1/eids/eid0": "0000:0007:0000:0001:0000:0002:0000:0003",
    "devices/ub0/00002/udma.2/ubcore/udma2/ubdev": "udma2",
    "devices/ub0/00002/udma.2/ubcore/udma2/driver_name": "udma",
    "devices/ub0/00002/udma.2/ubcore/udma2/transport_type": "5",
    "devices/ub0/00002/udma.2/ubcore/udma2/guid": "4245:4944:0000:0000:0000:0000:0100:0000",
    "devices/ub0/00002/udma.2/ubcore/udma2/feature": "0x1f",
    "devices/ub0/00002/udma.2/ubcore/udma2/eids/eid0": "4245:4944:0000:0001:0000:0002:0000:0000",
    "devices/ub0/00002/udma.2/ubcore/udma2/eids/eid1": "0000:0000:0000:0000:0000:0000:0000:0000",
    "devices/ub0/00002/udma.2/ubcore/udma2/eids/eid10": "4245:4944:0000:0001:0000:0002:0000:000a",
    "devices/ub0/00002/udma.2/ubcore/udma2/dynamic_eid": "1",
    "devices/ub0/00002/udma.2/ubcore/udma2/virtualization": "false",
    "devices/ub0/00002/udma.2/ubcore/udma2/trans_mode": "7",
    "devices/ub0/00002/udma.2/ubcore/udma2/port_count": "1",
    "devices/ub0/00002/udma.2/ubcore/udma2/port0/max_mtu": "6",
    "devices/ub0/00002/udma.2/ubcore/udma2/port0/active_mtu": "5",
    "devices/ub0/00002/udma.2/ubcore/udma2/port0/state": "4",
    "devices/ub0/00002/udma.2/ubcore/udma2/port0/active_width": "8",
    "devices/ub0/00002/udma.2/ubcore/udma2/port0/active_speed": "12",
    "devices/ub0/00002/udma.2/ubcore/udma2/priority/priority15/sl": "3",
    "devices/ub0/00002/udma.2/ubcore/udma2/priority/priority15/tp_type": "1",
    "devices/ub0/00002/udma.2/ubcore/udma2/reserved_jetty_id": "0-31",
    "devices/ub0/00002/udma.2/ubcore/udma2/max_jetty": "4096",
    "devices/ub0/00002/udma.2/ubcore/udma2/page_size_cap": "0x1000",
    "devices/ub0/00002/vendor": "0xcc08",
    "devices/ub0/00002/device": "0xd802",
    "devices/ub0/00002/class_code": "0x0002",
    "devices/ub0/00002/type": "0x1",
    "devices/ub0/00002/guid": "cc08-d802-0-1-000000-0000000700010002",
    "devices/ub0/00002/eid": "1026",
    "devices/ub0/00002/entity_idx": "2",
    "devices/ub0/00002/tid": "2",
    "devices/ub0/00002/upi": "0x01",
    "devices/ub0/00002/instance": "0x000",
    "devices/ub0/00002/primary_entity": "0x001",
    "devices/ub0/00002/ubc": "0x001",
    "devices/ub0/00002/primary_cna": "0x0201",
    "devices/ub0/00002/numa": "0x01",
    "devices/ub0/00002/kref": "4",
    "devices/ub0/00002/match_driver": "1",
    "devices/ub0/00002/driver_override": "(null)",
    "devices/ub0/00001/numa": "-1",
    "devices/ub0/00001/direct_link": "0x01 : 0x02 [0x00003]\n0x04 : 0x04 [0x00003]",
    "devices/ub0/00001/ub_numues": "4",
    "devices/ub0/00001/ub_totalues": "255",
    "devices/ub0/00001/mue_list": "00002\n00004",
    "devices/ub0/00001/ue_list": "00005 00006",
    "devices/ub0/00001/port1/cna": "0x0202",
    "devices/ub0/00001/port1/linkup": "1",
    "devices/ub0/00001/port1/neighbor": "00003",
    "devices/ub0/00001/port1/neighbor_guid": "cc08-a001-0-0-000000-0000000700020000",
    "devices/ub0/00001/port1/neighbor_port_idx": "2",
    "devices/ub0/00001/port1/boundary": "0x0",
    "devices/ub0/00001/port1/glb_qdlws": "disabled",
    "devices/ub0/00001/port1/qdlws_exec_state": "IDLE",
    "devices/ub0/00001/port2/linkup": "0",
    "devices/ub0/00001/port2/neighbor": "No Neighbor",
    "devices/ub0/00001/port2/neighbor_guid": "No Neighbor",
    "devices/ub0/00001/port2/neighbor_port_idx": "No Neighbor",
    "devices/ub0/00001/slot3/power": "poweroff",
    "bus/ub/cluster": "1",
    "bus/ub/instance": "count 0x1, from 0x0, show 0x1\nguid:cc08-a001 type:1 eid:00401 upi:0001",
    "bus/ub/ub_feature": "0x0000000000000fff\nUB Memory Sharing(Cacheable)+",
    "devices/system/node/node0/cpulist": "0-3,8",
    "devices/system/node/node0/distance": "10 21 100",
    "devices/system/node/node0/meminfo": "Node 0 MemTotal:       65536 kB\nNode 0 MemFree:        1024 kB",
    "devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages": "16",
    "devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages": "15",
    "devices/system/node/node1/cpulist": "4-7",
    "devices/system/node/node1/distance": "21 10 100",
    "devices/system/node/node4/cpulist": "",
    "devices/system/node/node4/distance": "100 100 10",
    "devices/obmm/obmm_shmdev7/type": "import",
    "devices/obmm/obmm_shmdev7/size": "0x8000000",
    "devices/obmm/obmm_shmdev7/allow_mmap": "1",
    "devices/obmm/obmm_shmdev7/import_info/numa_id": "4",
    "devices/obmm/obmm_shmdev7/import_info/scna": "0x201",
    "devices/obmm/obmm_shmdev8/type": "export",
    "kernel/obmm_mempool/obmm-0/total": "1073741824",
    "kernel/obmm_mempool/obmm-0/used": "0",
}


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    for name, content in RECORDED.items():
        path = tmp_path / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    sys = tmp_path / "sys"
    (sys / "class/ubcore/udma2").symlink_to("../../devices/ub0/00002/udma.2/ubcore/udma2")
    (sys / "devices/ub0/00002/udma.2/ubcore/udma2/device").symlink_to("../../../../00002")
    (sys / "bus/ub/devices").mkdir()
    (sys / "bus/ub/drivers/udma_driver").mkdir(parents=True)
    (sys / "devices/ub0/00002/driver").symlink_to("../../../bus/ub/drivers/udma_driver")
    for number in ("00001", "00002"):
        (sys / "bus/ub/devices" / number).symlink_to(f"../../../devices/ub0/{number}")
    return Roots(tmp_path)


def test_devices_are_read_in_the_kernels_formats(roots: Roots) -> None:
    host = read_host(roots)
    assert host.is_ub_platform
    bonding, udma = host.devices
    assert (bonding.name, bonding.is_bonding, bonding.net_dev) == ("bonding_dev_1", True, "ipourma1")
    assert bonding.transport_type is Transport.UB
    assert bonding.eids == (Eid.from_words(7, 1, 2, 3),)
    assert (bonding.vendor, bonding.device, bonding.entity) == (None, None, None)
    assert udma.transport_type is Transport.HNS_UB
    assert udma.guid == Eid.parse("4245:4944::100:0")
    assert udma.feature == 0x1F
    assert (udma.dynamic_eid, udma.virtualization) == (True, False)
    assert udma.trans_mode == TransMode.RM | TransMode.RC | TransMode.UM
    assert udma.ports == (UrmaPort(0, Mtu.MTU_8192, Mtu.MTU_4096, PortState.ACTIVE, Width.X8, Speed.SP_400G),)
    assert udma.priorities == (Priority(15, sl=3, tp_type=1),)
    assert udma.reserved_jetty_id == (0, 31)
    assert udma.limits == {"max_jetty": 4096, "page_size_cap": 4096}
    assert (udma.vendor, udma.device, udma.entity) == (0xCC08, 0xD802, "00002")


def test_eids_keep_their_slots_and_a_gap_is_zero(roots: Roots) -> None:
    udma = read_host(roots).devices[1]
    assert len(udma.eids) == 11
    assert [index for index, eid in enumerate(udma.eids) if not eid.is_zero] == [0, 10]


def test_entities_are_read_in_the_kernels_formats(roots: Roots) -> None:
    first, second = read_host(roots).entities
    assert first.numa is None
    assert first.peers == (DirectLink(1, 2, "00003"), DirectLink(4, 4, "00003"))
    assert (first.num_ues, first.total_ues, first.mues, first.ues) == (4, 255, ("00002", "00004"), ("00005", "00006"))
    assert first.ports == (
        EntityPort(
            1,
            0x202,
            True,
            "00003",
            "cc08-a001-0-0-000000-0000000700020000",
            2,
            False,
            glb_qdlws="disabled",
            qdlws_exec_state="IDLE",
        ),
        EntityPort(2, linkup=False),
    )
    assert first.slots == {3: "poweroff"}
    assert (second.vendor, second.device, second.class_code, second.type) == (0xCC08, 0xD802, 2, 1)
    assert (second.eid, second.entity_idx, second.tid, second.upi, second.kref) == (1026, 2, 2, 1, 4)
    assert (second.primary_entity, second.ubc, second.primary_cna, second.numa) == ("00001", "00001", 0x201, 1)
    assert (second.driver, second.driver_override, second.match_driver) == ("udma_driver", None, True)


def test_the_bus_tells_its_mode_its_features_and_its_instances(roots: Roots) -> None:
    assert read_host(roots).bus == UbBus(
        cluster=True, feature=0xFFF, instances=(BusInstance("cc08-a001", type=1, eid=0x401, upi=1),)
    )


def test_numa_nodes_may_have_no_cpus_and_gaps_in_their_ids(roots: Roots) -> None:
    assert read_host(roots).numa == (
        NumaNode(0, (0, 1, 2, 3, 8), 64 << 20, 1 << 20, {0: 10, 1: 21, 4: 100}, (HugePages(2048, 16, 15),)),
        NumaNode(1, (4, 5, 6, 7), distances={0: 21, 1: 10, 4: 100}),
        NumaNode(4, distances={0: 100, 1: 100, 4: 10}),
    )
    assert [node.is_cpuless for node in read_host(roots).numa] == [False, False, True]


def test_shared_memory_and_pools_are_read(roots: Roots) -> None:
    host = read_host(roots)
    assert host.shared_memory == (
        SharedMemory(7, "import", 128 << 20, True, 4, {"scna": "0x201"}),
        SharedMemory(8, "export"),
    )
    assert host.shared_memory[0].node == "obmm_shmdev7"
    assert host.memory_pools == (MemoryPool(0, total=1 << 30, used=0),)


def test_an_empty_machine_is_a_host_without_anything(tmp_path: Path) -> None:
    host = read_host(Roots(tmp_path))
    assert not host.is_ub_platform
    assert (host.devices, host.entities, host.numa, host.shared_memory) == ((), (), (), ())


def test_an_older_driver_has_two_attributes_for_reserved_jetties(roots: Roots) -> None:
    folder = roots.sys / "class/ubcore/bonding_dev_1"
    (folder / "reserved_jetty_id_min").write_text("5\n")
    (folder / "reserved_jetty_id_max").write_text("9\n")
    assert read_host(roots).devices[0].reserved_jetty_id == (5, 9)


def test_an_older_driver_has_a_folder_for_each_eid(roots: Roots) -> None:
    folder = roots.sys / "class/ubcore/udma2"
    shutil.rmtree(folder / "eids")
    for slot, eid in ((0, Eid(7)), (2, Eid(9))):
        (folder / f"eid{slot}").mkdir()
        (folder / f"eid{slot}/eid").write_text(f"{eid}\n")
    device = next(device for device in read_host(roots).devices if device.name == "udma2")
    assert device.eids == (Eid(7), Eid(0), Eid(9))


def test_a_device_without_netdev_has_an_empty_attribute(roots: Roots) -> None:
    (roots.sys / "class/ubcore/bonding_dev_1/net_dev").write_text("")
    assert read_host(roots).devices[0].net_dev is None


@pytest.mark.parametrize(
    ("path", "content", "complaint"),
    [
        ("bus/ub/cluster", "7", r"bus/ub/cluster: '7' makes no sense: expected 0 or 1"),
        ("bus/ub/instance", "guid:1", r"bus/ub: instance 'guid:1' makes no sense"),
        ("devices/system/node/node0/cpulist", "3-1", r"node0/cpulist: '3-1' is not a range of CPUs"),
        ("devices/system/node/node0/cpulist", "0-99999", r"node0/cpulist: '0-99999' is not a range of CPUs below 8192"),
        ("devices/system/node/node0/distance", "10 21", r"node0/distance: '10 21' makes no sense: expected 3"),
        ("devices/obmm/obmm_shmdev7/type", "lent", r"obmm_shmdev7/type: 'lent' makes no sense"),
    ],
)
def test_a_corner_that_makes_no_sense_is_named_by_its_path_and_hides_nothing_else(
    roots: Roots, path: str, content: str, complaint: str
) -> None:
    before = read_host(roots)
    (roots.sys / path).write_text(f"{content}\n")
    after = read_host(roots)
    assert before.faults == ()
    (fault,) = after.faults
    assert re.search(complaint, fault)
    assert (after.devices, after.entities) == (before.devices, before.entities)
    parts = ("bus", "numa", "shared_memory", "memory_pools")
    assert [part for part in parts if getattr(before, part) != getattr(after, part)] in ([part] for part in parts)


@pytest.mark.parametrize(
    ("path", "content", "complaint"),
    [
        ("class/ubcore/udma2/port0/state", "9", r"udma2/port0/state: '9' makes no sense"),
        ("class/ubcore/udma2/eids/eid1", "zero", r"udma2/eids/eid1: 'zero' makes no sense"),
        ("class/ubcore/udma2/reserved_jetty_id", "31", r"reserved_jetty_id: '31' makes no sense: expected min-max"),
        ("bus/ub/devices/00001/direct_link", "0x1 -> 0x2", r"00001/direct_link: '0x1 -> 0x2' is not a direct link"),
        ("bus/ub/devices/00002/numa", "5000", r"00002/numa: 5000 is not a NUMA node"),
        ("bus/ub/devices/00001/ue_list", "x", r"00001/ue_list: expected a UB entity number"),
    ],
)
def test_one_that_makes_no_sense_says_so_and_does_not_hide_the_others(
    roots: Roots, path: str, content: str, complaint: str
) -> None:
    def all_of_them() -> dict[str, str | None]:
        host = read_host(roots)
        faults = {device.name: device.fault for device in host.devices}
        return faults | {entity.number: entity.fault for entity in host.entities}

    sound = all_of_them()
    (roots.sys / path).write_text(f"{content}\n")
    broken = all_of_them()
    name = path.split("/")[2 if path.startswith("class") else 3]
    fault = broken[name]
    assert fault is not None
    assert re.search(complaint, fault)
    assert set(sound.values()) == {None}
    assert broken == {**sound, name: fault}


@pytest.mark.parametrize("path", ["class/ubcore/-rf", "class/ubcore/a b", "bus/ub/devices/1"])
def test_a_name_that_no_driver_gives_is_refused(roots: Roots, path: str) -> None:
    (roots.sys / path).mkdir()
    with pytest.raises(Unreadable, match=path):
        read_host(roots)

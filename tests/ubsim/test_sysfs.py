"""The simulated tree has the kernel's names and formats: pinned by hand against reference/ub.md and the driver."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ubhost.model import Eid, UbHost, UrmaDevice
from ubsim.expansion import load
from ubsim.hosts import hosts_of
from ubsim.sysfs import device_entries, entries
from ubsim.tree import poke, write

SCENARIO = """
name: two-nodes
super_node_id: 7
nodes:
  - name: node0
    numa:
      - {cpus: 0-3, memory: 16GiB, hugepages_2m: 128}
      - {cpus: 4-7, memory: 16GiB}
      - {memory: 4GiB, borrowed_from: node1}
  - name: node1
shared_memory:
  - {name: shared0, owner: node0, importers: [node1], size: 128MiB}
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, UbHost]:
    path = tmp_path_factory.mktemp("scenario") / "two-nodes.yaml"
    path.write_text(SCENARIO)
    return hosts_of(load(path), {("node0", "bonding_dev_1"): "ipourma1"})


@pytest.fixture(scope="module")
def root(hosts: dict[str, UbHost], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("node0")
    write(root, entries(hosts["node0"]))
    return root


@pytest.fixture
def read(root: Path) -> Callable[[str], str]:
    return lambda path: (root / path).read_text()


def test_a_bonding_device(read: Callable[[str], str]) -> None:
    base = "sys/class/ubcore/bonding_dev_1"
    assert read(f"{base}/ubdev") == "bonding_dev_1\n"
    assert read(f"{base}/net_dev") == "ipourma1\n"
    assert read(f"{base}/eids/eid0") == "0000:0007:0000:0000:0000:0002:0000:0003\n"
    assert read(f"{base}/transport_type") == "0\n"
    assert read(f"{base}/max_eid_cnt") == "1\n"


def test_an_entity_device(read: Callable[[str], str], root: Path) -> None:
    base = "sys/class/ubcore/udma2"
    assert read(f"{base}/driver_name") == "udma\n"
    assert read(f"{base}/feature") == "0x1f\n"
    assert read(f"{base}/virtualization") == "false\n"
    assert read(f"{base}/dynamic_eid") == "0\n"
    assert read(f"{base}/trans_mode") == "7\n"
    assert read(f"{base}/reserved_jetty_id") == "32-63\n"
    assert read(f"{base}/port0/state") == "4\n"
    assert read(f"{base}/port0/active_width") == "4\n"
    assert read(f"{base}/port0/active_speed") == "12\n"
    assert read(f"{base}/port0/max_mtu") == "5\n"
    assert read(f"{base}/priority/priority15/sl") == "15\n"
    assert read(f"{base}/device/vendor") == "0xcc08\n"
    assert read(f"{base}/device/device") == "0xa002\n"
    assert (root / base / "device").resolve().name == "00005"
    assert sorted(p.name for p in (root / base / "eids").iterdir()) == [f"eid{at}" for at in range(10)]
    assert read(f"{base}/eids/eid3") == "4245:4944:0007:0000:0000:0002:0000:0003\n"


def test_only_the_congestion_algorithm_and_the_reserved_jetties_are_writable(root: Path) -> None:
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (root / "sys/class/ubcore/udma2").iterdir() if p.is_file()}
    assert {name for name, mode in modes.items() if mode & 0o222} == {"congestion_ctrl_alg", "reserved_jetty_id"}


def test_an_entity_of_the_bus(read: Callable[[str], str]) -> None:
    base = "sys/bus/ub/devices/00001"
    assert read(f"{base}/vendor") == "0xcc08\n"
    assert read(f"{base}/class_code") == "0x0002\n"
    assert read(f"{base}/type") == "0x1\n"
    assert read(f"{base}/upi") == "0x01\n"
    assert read(f"{base}/numa") == "0x00\n"
    assert read(f"{base}/primary_entity") == "0x001\n"
    assert read(f"{base}/guid") == "cc08-a000-0-1-000000-0000000700000000\n"
    assert read(f"{base}/direct_link") == "0x00 : 0x00 [0x001]\n"
    assert read(f"{base}/mue_list") == "00003\n"
    assert read("sys/bus/ub/devices/00003/ub_numues") == "2\n"
    assert read("sys/bus/ub/devices/00003/ue_list") == "00005\n00007\n"
    assert read("sys/bus/ub/devices/00004/numa") == "0x01\n", "the other die sits on the other socket"
    assert read("sys/bus/ub/cluster") == "1\n"
    assert read("sys/bus/ub/instance").startswith("count 0x1, from 0x0, show 0x1\nguid:cc08-0000-0-0-000000-")


def test_ports_name_their_neighbours_or_say_that_there_is_none(read: Callable[[str], str]) -> None:
    linked, free = "sys/bus/ub/devices/00001/port0", "sys/bus/ub/devices/00001/port1"
    assert [read(f"{linked}/{name}") for name in ("linkup", "neighbor", "neighbor_port_idx", "boundary")] == [
        "1\n", "00001\n", "0\n", "0x0\n",
    ]  # fmt: skip
    assert read(f"{linked}/neighbor_guid") == "cc08-a000-0-1-000000-0000000700010000\n"
    assert read(f"{free}/linkup") == "0\n"
    for name in ("neighbor", "neighbor_guid", "neighbor_port_idx"):
        assert read(f"{free}/{name}") == "No Neighbor\n"


def test_a_link_is_seen_the_same_from_both_ends(hosts: dict[str, UbHost]) -> None:
    here, there = hosts["node0"].entities[0], hosts["node1"].entities[0]
    assert here.ports[0].neighbor_guid == there.guid
    assert there.ports[0].neighbor_guid == here.guid


def test_numa_nodes_with_borrowed_memory(read: Callable[[str], str], root: Path) -> None:
    base = "sys/devices/system/node"
    assert read(f"{base}/online") == "0-2\n"
    assert read(f"{base}/has_cpu") == "0-1\n"
    assert read(f"{base}/node0/cpulist") == "0-3\n"
    assert read(f"{base}/node0/cpumap") == "0000000f\n"
    assert read(f"{base}/node2/cpulist") == "\n"
    assert read(f"{base}/node2/distance") == "100 100 10\n"
    assert read(f"{base}/node2/meminfo").splitlines()[0] == "Node 2 MemTotal:        4194304 kB"
    assert read(f"{base}/node0/hugepages/hugepages-2048kB/nr_hugepages") == "128\n"
    assert (root / base / "node0/cpu3").resolve() == (root / "sys/devices/system/cpu/cpu3").resolve()


def test_shared_memory(read: Callable[[str], str], root: Path) -> None:
    base = "sys/devices/obmm"
    assert read(f"{base}/obmm_shmdev1/type") == "import\n"
    assert read(f"{base}/obmm_shmdev1/size") == "0x100000000\n"
    assert read(f"{base}/obmm_shmdev1/import_info/numa_id") == "2\n"
    assert read(f"{base}/obmm_shmdev2/type") == "export\n"
    assert (root / "dev/obmm_shmdev2").stat().st_size == 128 << 20
    assert not (root / "dev/obmm_shmdev1").exists(), "memory that became a NUMA node cannot be mapped"


def test_device_nodes_have_the_modes_of_the_drivers(root: Path) -> None:
    modes = {
        "dev/uburma/bonding_dev_0": 0o666,
        "dev/uburma/udma5": 0o666,
        "dev/ubcore": 0o666,
        "dev/ubagg": 0o666,
        "dev/ummu/tid": 0o600,
        "dev/obmm": 0o600,
        "dev/obmm_shmdev2": 0o600,
    }
    assert {path: stat.S_IMODE((root / path).stat().st_mode) for path in modes} == modes


def test_firmware_says_that_this_is_a_ub_platform(root: Path) -> None:
    assert (root / "sys/firmware/acpi/tables/UBRT").is_file()


def test_a_value_that_is_not_there_has_no_file_but_the_netdev_has_an_empty_one(tmp_path: Path) -> None:
    write(tmp_path, device_entries(UrmaDevice("udma9", eids=(Eid(0),))))
    device = tmp_path / "sys/class/ubcore/udma9"
    assert sorted(p.name for p in device.iterdir()) == ["eids", "net_dev"]
    assert (device / "net_dev").read_text() == ""


def test_writing_a_tree_again_changes_nothing(hosts: dict[str, UbHost], tmp_path: Path) -> None:
    def snapshot() -> dict[str, str]:
        return {str(p): p.read_text() for p in sorted((tmp_path / "sys").rglob("*")) if p.is_file()}

    write(tmp_path, entries(hosts["node1"]))
    before = snapshot()
    write(tmp_path, entries(hosts["node1"]))
    assert snapshot() == before


def test_a_change_in_place_never_leaves_part_of_the_old_value(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text("ACTIVE_DEFER\n")
    poke(path, "DOWN\n")
    assert path.read_text() == "DOWN\n"


def test_one_changed_attribute_changes_no_other_that_had_the_same_value(
    hosts: dict[str, UbHost], tmp_path: Path
) -> None:
    write(tmp_path, entries(hosts["node1"]))
    base = tmp_path / "sys/class/ubcore"
    poke(base / "udma2/priority/priority3/sl", "9\n")
    poke(base / "udma2/port0/state", "1\n")
    poke(base / "udma2/eids/eid0", f"{Eid(0)}\n")
    assert (base / "udma3/priority/priority3/sl").read_text() == "3\n"
    assert (base / "udma3/port0/state").read_text() == "4\n"
    assert (base / "udma2/eids/eid1").read_text() != f"{Eid(0)}\n"

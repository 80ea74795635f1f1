"""A simulated device has the attributes of a real one, for the vendor's tools complain of each that they miss.

Source: kernel drivers/ub/urma/ubcore/ubcore_cdev_file.c (what there is); umdk tools/urma_admin/admin_cmd_show.c and
lib/urma/core/urma_device.c (what is read of it: the counts say which folders are opened).
"""

import re
from pathlib import Path

import pytest

from ubsim import consistency
from ubsim.expansion import load
from ubsim.hosts import hosts_of
from ubsim.sysfs import entries
from ubsim.tree import write

OPERATIONS = ("add", "sub", "and", "or", "xor")
ATTRIBUTES = {
    "ubdev", "driver_name", "net_dev", "transport_type", "guid", "feature", "dynamic_eid", "virtualization",
    "trans_mode", "atomic_feat", "congestion_ctrl_alg", "ceq_cnt", "utp_cnt", "ue_cnt", "mn", "page_size_cap",
    "port_count", "reserved_jetty_id", "max_eid_cnt", "max_upi_cnt", "max_jfc", "max_jfs", "max_jfr", "max_jetty",
    "max_jetty_grp", "max_jetty_in_jetty_grp", "max_jfc_depth", "max_jfs_depth", "max_jfr_depth",
    "max_jfs_inline_size", "max_jfs_sge", "max_jfs_rsge", "max_jfr_sge", "max_msg_size", "max_read_size",
    "max_write_size", "max_cas_size", "max_swap_size", "max_rc_outstd_cnt", "max_tp_in_tpg", "max_oor_cnt",
    "max_netaddr_cnt", *(f"max_fetch_and_{operation}_size" for operation in OPERATIONS),
}  # fmt: skip
PORT = {"max_mtu", "active_mtu", "state", "active_width", "active_speed"}
EID = re.compile(r"([0-9a-f]{4}:){7}[0-9a-f]{4}\n")


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("tree")
    scenario = load(Path(consistency.__file__).parent / "scenarios/one-node.yaml")
    for host in hosts_of(scenario).values():
        write(root, entries(host))
    return sorted((root / "sys/class/ubcore").iterdir())


def test_a_device_has_every_attribute_of_the_driver(devices: list[Path]) -> None:
    assert devices
    for device in devices:
        missing = ATTRIBUTES - {path.name for path in device.iterdir()}
        assert not missing, device.name


def test_there_are_as_many_eids_and_ports_as_the_counts_say(devices: list[Path]) -> None:
    for device in devices:
        eids = int((device / "max_eid_cnt").read_text())
        assert {path.name for path in (device / "eids").iterdir()} == {f"eid{slot}" for slot in range(eids)}
        assert all(EID.fullmatch(path.read_text()) for path in (device / "eids").iterdir())
        for port in range(int((device / "port_count").read_text())):
            assert {path.name for path in (device / f"port{port}").iterdir()} >= PORT


def test_attributes_are_written_as_the_driver_writes_them(devices: list[Path]) -> None:
    for device in devices:
        assert re.fullmatch(r"\d+-\d+\n", (device / "reserved_jetty_id").read_text())
        assert re.fullmatch(r"0x[0-9a-f]+\n", (device / "page_size_cap").read_text())
        assert re.fullmatch(r"0x[0-9a-f]+\n", (device / "feature").read_text())
        assert (device / "virtualization").read_text() in ("true\n", "false\n")
        is_bonding = device.name.startswith("bonding_dev_")
        assert (device / "net_dev").read_text() == "" or is_bonding
        assert (device / "device/vendor").exists() is not is_bonding  # liburma passes over these of bonding devices

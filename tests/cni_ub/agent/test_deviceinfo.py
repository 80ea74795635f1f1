"""DeviceInfo files for Multus."""

import json
from pathlib import Path

from cni_ub.agent.deviceinfo import DeviceInfoFiles, describe, file_name
from ubhost.model import Eid
from ubhost.provider import Device, EidSlot
from ubhost.roots import Roots

EID = Eid.from_words(7, 1, 2, 3)
URMA = Device("urma_1", ("bonding_dev_1", "udma2", "udma3"), (EidSlot("bonding_dev_1", 0, EID),), address="00002")
RDMA = Device("mlx5_0", ("mlx5_0",), address="0000:3b:00.0")
NAME = "unifiedbus.com/ub_net_device"


def test_a_ub_device_has_a_type_of_its_own() -> None:
    assert describe(URMA) == {
        "type": "ub",
        "version": "1.1.0",
        "ub": {
            "device-id": "urma_1",
            "urma-devices": ["bonding_dev_1", "udma2", "udma3"],
            "ub-address": "00002",
            "eid": "0000:0007:0000:0001:0000:0002:0000:0003",
        },
    }


def test_a_device_with_a_pci_address_is_described_as_everybody_knows_it() -> None:
    assert describe(RDMA) == {
        "type": "pci",
        "version": "1.1.0",
        "pci": {"pci-address": "0000:3b:00.0", "rdma-device": "mlx5_0"},
    }


def test_slashes_in_resource_and_id_become_hyphens() -> None:
    assert file_name("a.b/c/d", "x/y") == "a.b-c-d-x-y-device.json"


def test_the_files_follow_the_devices_and_go_when_the_agent_stops(tmp_path: Path) -> None:
    files = DeviceInfoFiles(Roots(tmp_path), [NAME])
    files.update({(NAME, "urma_1"): URMA, (NAME, "urma_2"): URMA})
    folder = tmp_path / "var/run/k8s.cni.cncf.io/devinfo/dp"
    assert sorted(path.name for path in folder.iterdir()) == [
        "unifiedbus.com-ub_net_device-urma_1-device.json",
        "unifiedbus.com-ub_net_device-urma_2-device.json",
    ]
    content = json.loads((folder / "unifiedbus.com-ub_net_device-urma_1-device.json").read_text())
    assert content["ub"]["device-id"] == "urma_1"
    files.update({(NAME, "urma_2"): URMA})
    assert len(list(folder.iterdir())) == 1
    files.remove()
    assert list(folder.iterdir()) == []


def test_what_a_killed_agent_left_is_cleared_and_what_is_others_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "var/run/k8s.cni.cncf.io/devinfo/dp"
    folder.mkdir(parents=True)
    left = folder / file_name(NAME, "urma_9")
    others = [
        folder / "intel.com-sriov-0000-3b-00.0-device.json",
        folder / file_name(f"{NAME}-of-another", "urma_9"),
        folder / file_name(f"{NAME}_shared", "urma_9"),
    ]
    for path in (left, *others):
        path.write_text("{}")
    DeviceInfoFiles(Roots(tmp_path), [NAME]).update({})
    assert not left.exists()
    assert all(path.exists() for path in others)

"""The CDI file, judged by the rules of the specification."""

import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_ub.agent import cdi
from tests.cni_ub.agent.host import Host
from ubhost.provider import Device

needs_mknod = pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")


def violations(text: bytes) -> list[str]:
    """Check a CDI file by SPEC.md and schema.json of version 0.5.0; return what is wrong."""
    spec = json.loads(text)
    wrong = _keys("spec", spec, {"cdiVersion", "kind", "devices"}, {"containerEdits"})
    vendor, _, class_ = str(spec.get("kind", "")).partition("/")
    if spec.get("cdiVersion") not in ("0.3.0", "0.4.0", "0.5.0"):
        wrong.append(f"version {spec.get('cdiVersion')!r}")
    if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?", vendor):
        wrong.append(f"vendor {vendor!r}")
    if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?", class_):
        wrong.append(f"class {class_!r}")
    devices = spec.get("devices", [])
    if not devices:
        wrong.append("no devices")
    names = [device["name"] for device in devices]
    if len(set(names)) != len(names):
        wrong.append("a name twice")
    for device in devices:
        wrong += _keys("device", device, {"name", "containerEdits"}, set())
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?", device["name"]):
            wrong.append(f"device name {device['name']!r}")
        wrong += _edits(device["containerEdits"])
    return wrong


def _edits(edits: Mapping[str, Any]) -> list[str]:
    wrong = _keys("edits", edits, set(), {"env", "deviceNodes", "mounts", "hooks"})
    if not any(edits.values()):
        wrong.append("empty edits")
    for node in edits.get("deviceNodes", []):
        wrong += _keys(
            "node",
            node,
            {"path"},
            {"hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"},
        )
        if not node["path"].startswith("/dev/"):
            wrong.append(f"path {node['path']!r}")
        if node.get("type", "") not in ("", "b", "c", "u", "p"):
            wrong.append(f"type {node['type']!r}")
        if set(node.get("permissions", "")) - set("rwm"):
            wrong.append(f"permissions {node['permissions']!r}")
    return wrong


def _keys(what: str, found: Mapping[str, Any], needed: set[str], allowed: set[str]) -> list[str]:
    """Loading fails on unknown keys."""
    return [f"{what}: missing {key}" for key in needed - found.keys()] + [
        f"{what}: unknown {key}" for key in found.keys() - needed - allowed
    ]


@needs_mknod
def test_a_device_is_its_bonding_device_two_entities_and_the_ummu(host: Host) -> None:
    file = cdi.CdiFile(host.roots)
    file.update(host.provider.devices())
    text = file.path.read_bytes()
    assert violations(text) == []
    spec = json.loads(text)
    assert spec["kind"] == "unifiedbus.com/urma"
    assert [device["name"] for device in spec["devices"]] == ["urma_1", "urma_2", "urma_3", "urma_4"]
    first = spec["devices"][0]["containerEdits"]["deviceNodes"]
    assert [node["path"] for node in first] == [
        "/dev/uburma/bonding_dev_1",
        "/dev/uburma/udma2",
        "/dev/uburma/udma3",
        "/dev/ummu/tid",
    ]
    assert first[0] == {
        "path": "/dev/uburma/bonding_dev_1",
        "hostPath": f"{host.root}/dev/uburma/bonding_dev_1",
        "type": "c",
        "permissions": "rw",
    }


def test_on_the_real_root_the_host_path_is_the_path() -> None:
    spec = cdi.specification([("urma_1", ("uburma/udma2",))], Path("/dev"))
    assert spec
    node = spec["devices"][0]["containerEdits"]["deviceNodes"][0]
    assert node == {"path": "/dev/uburma/udma2", "type": "c", "permissions": "rw"}


@needs_mknod
def test_the_file_is_readable_for_all_and_alone_in_its_folder(host: Host) -> None:
    file = cdi.CdiFile(host.roots)
    file.update(host.provider.devices())
    assert file.path == host.root / "var/run/cdi/unifiedbus.com-urma.json"
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o644
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o755
    assert list(file.path.parent.iterdir()) == [file.path]


@needs_mknod
def test_it_is_not_touched_while_nothing_changes_and_follows_new_names_after_a_reboot(host: Host) -> None:
    file = cdi.CdiFile(host.roots)
    devices = host.provider.devices()
    file.update(devices)
    before = file.path.stat()
    file.update(devices)
    assert (file.path.stat().st_ino, file.path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    renumbered = Device("urma_1", ("bonding_dev_3",), nodes=("uburma/bonding_dev_3",))
    file.update([renumbered])
    assert [node["path"] for d in json.loads(file.path.read_text())["devices"] for node in _nodes(d)] == [
        "/dev/uburma/bonding_dev_3"
    ]


def _nodes(device: Mapping[str, Any]) -> list[dict[str, str]]:
    nodes: list[dict[str, str]] = device["containerEdits"]["deviceNodes"]
    return nodes


@needs_mknod
def test_without_devices_there_is_no_file_for_cdi_refuses_an_empty_list(host: Host) -> None:
    file = cdi.CdiFile(host.roots)
    file.update(host.provider.devices())
    file.update(())
    assert not file.path.exists()
    file.update(())  # and that again is fine


@needs_mknod
@pytest.mark.parametrize(
    "node", ["/dev/null", "../dev/null", "uburma/../null", "uburma/link", "uburma/plain", "a/b", ""]
)
def test_what_is_no_device_node_of_its_own_below_dev_is_left_out(tmp_path: Path, node: str) -> None:
    (tmp_path / "dev/uburma").mkdir(parents=True)
    os.mknod(tmp_path / "dev/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (tmp_path / "dev/uburma/link").symlink_to("/dev/null")
    (tmp_path / "dev/uburma/plain").touch()
    assert cdi.character_devices(Device("urma_1", (), nodes=(node,)), tmp_path / "dev") == ()


names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,20}[A-Za-z0-9])?", fullmatch=True)


@given(st.dictionaries(names, st.lists(names.map(lambda n: f"uburma/{n}"), max_size=4).map(tuple), max_size=6))
def test_whatever_the_devices_are_called_the_file_is_valid(devices: dict[str, tuple[str, ...]]) -> None:
    spec = cdi.specification(devices.items(), Path("/host/dev"))
    if spec is None:
        assert not any(devices.values())
    else:
        assert violations(json.dumps(spec).encode()) == []

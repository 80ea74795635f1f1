"""What a pod was given reaches its containers, and nobody else's. The records are as the other plugins write them."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from ubproto.nri.v1alpha1 import nri_pb2

from csi_ub.memory import handover
from nri_qos import grants
from nri_qos.grants import DeviceNode, Grants
from nri_qos.model import Container, Pod
from tests.nri_qos.conftest import Plugin, container, pod
from tests.nri_qos.nodes import add_device
from ubhost.errors import HostFault
from ubhost.ledger import Ledger
from ubhost.record import Record, State
from ubhost.roots import Roots
from ubsim.runtime import CallRefused, Runtime

needs_mknod = pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")
POD = Pod("sandbox", "web", "uid", "shop")
NULL, ZERO = (1, 3), (1, 5)


def make_node(root: Path, node: str, number: tuple[int, int] = NULL, mode: int = 0o660) -> None:
    path = root / "dev" / node
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR, os.makedev(*number))
    path.chmod(mode)


def attach(root: Path, *nodes: str, container: str = "sandbox", state: State = State.ATTACHED, **values: Any) -> None:
    """Write what the network plugin writes."""
    ledger = Ledger(Roots(root))
    values.setdefault("boot_id", ledger.boot_id)
    ledger.write(Record("urma_1", container, "net1", state=state, nodes=nodes, **values))


def volume(root: Path, *nodes: str, uid: str = "uid", name: str = "uid@vol", permissions: str = "rw") -> Path:
    """Write what the storage plugin writes."""
    path = root / "run/ub-node/volumes" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    devices = [{"node": node, "permissions": permissions} for node in nodes]
    content = {"version": 1, "pod_uid": uid, "volume": "vol", "devices": devices, "mounts": [], "env": {}}
    path.write_text(json.dumps(content))
    return path


def given(root: Path, pod: Pod = POD, *devices: tuple[str, int, int]) -> list[str]:
    found = grants.read(Roots(root), pod, Container("c", pod.id, devices=devices))
    return [device.path for device in found.devices]


@needs_mknod
def test_a_pod_gets_the_nodes_of_its_devices_and_volumes_and_no_other_pod_does(
    runtime: Runtime, plugin: Plugin, root: Path
) -> None:
    web, other = pod("web"), pod("other")
    make_node(root, "uburma/udma2", NULL)
    make_node(root, "ummu/tid", ZERO, 0o666)
    make_node(root, "obmm_shmdev3", (1, 7))
    attach(root, "uburma/udma2", "ummu", container=web.id, pod_uid=web.uid)
    volume(root, "obmm_shmdev3", uid=web.uid, name=f"{web.uid}@pvc-1")
    plugin.start()
    runtime.register()
    for each in (web, other):
        runtime.run_pod(each)
    for name in ("app", "sidecar"):
        made = runtime.create(container(web, name)).linux.devices
        assert [(d.path, d.type, d.major, d.minor, d.file_mode.value) for d in made] == [
            ("/dev/uburma/udma2", "c", 1, 3, 0o660),
            ("/dev/ummu/tid", "c", 1, 5, 0o666),
            ("/dev/obmm_shmdev3", "c", 1, 7, 0o660),
        ]
    assert not runtime.create(container(other)).ListFields()
    assert plugin.wait_for("container decided")["devices"] == [
        "/dev/uburma/udma2",
        "/dev/ummu/tid",
        "/dev/obmm_shmdev3",
    ]


@needs_mknod
def test_what_a_pod_says_of_itself_gives_it_nothing(runtime: Runtime, plugin: Plugin, root: Path) -> None:
    make_node(root, "obmm_shmdev3")
    volume(root, "obmm_shmdev3", uid="uid-victim", name="uid-victim@pvc-1")
    plugin.start()
    runtime.register()
    thief = pod("thief")
    thief.annotations.update({"ub.unifiedbus.com/devices": "/dev/obmm_shmdev3", "uid": "uid-victim"})
    thief.labels["uid"] = "uid-victim"
    runtime.run_pod(thief)
    asked = container(thief)
    asked.env.append("UB_POD_UID=uid-victim")
    assert not runtime.create(asked).ListFields()


@needs_mknod
def test_a_container_is_put_near_the_device_that_its_pod_was_given(
    runtime: Runtime, plugin: Plugin, root: Path
) -> None:
    make_node(root, "uburma/udma2", NULL)
    add_device(root, "ub0/00042", "1", "1:3")
    web = pod("web", "HLS", guaranteed=True)
    attach(root, "uburma/udma2", container=web.id)
    plugin.start()
    runtime.register()
    runtime.run_pod(web)
    assert runtime.create(container(web, cpus=2)).linux.resources.cpu.cpus == "4-5"


def test_only_a_pod_with_zero_copy_paths_gets_their_mounts_and_environment(
    runtime: Runtime, plugin: Plugin, root: Path
) -> None:
    plugin.start()
    runtime.register()
    given, plain = pod("given"), pod("plain")
    (root / "run/ub-node/zerocopy/pods" / given.id / "lib").mkdir(parents=True)
    (root / "run/ub-node/zerocopy/pods" / given.id / "lib/libsmc.so").touch()
    for each in (given, plain):
        runtime.run_pod(each)
    asked = container(given)
    asked.env.append("LD_PRELOAD=/theirs.so")
    adjust = runtime.create(asked)
    assert [(m.type, m.destination) for m in adjust.mounts] == [("bind", "/run/ub")]
    assert [e.key for e in adjust.env] == ["UB_PATHS"]  # what the container sets itself stays
    assert not runtime.create(container(plain)).ListFields()


@needs_mknod
def test_a_dry_run_gives_nothing(runtime: Runtime, plugin: Plugin, root: Path) -> None:
    web = pod("web")
    make_node(root, "uburma/udma2")
    attach(root, "uburma/udma2", container=web.id)
    plugin.start("--dry-run")
    runtime.register()
    runtime.run_pod(web)
    assert not runtime.create(container(web)).ListFields()


@pytest.mark.parametrize(("failure", "refused"), [("lenient", False), ("strict", True)])
def test_records_that_cannot_be_read_are_a_doubt(
    failure: str, refused: bool, runtime: Runtime, plugin: Plugin, root: Path
) -> None:
    web = pod("web")
    volume(root, "obmm_shmdev3", uid=web.uid, name=f"{web.uid}@pvc-1").write_text('{"version": 1, "pod_')
    plugin.start(config={"failure": failure, "period": 60})
    runtime.register()
    runtime.run_pod(web)
    if refused:
        with pytest.raises(CallRefused, match=r"pvc-1\.json is not JSON"):
            runtime.create(container(web))
    else:
        assert not runtime.create(container(web)).ListFields()
        assert "pvc-1.json" in plugin.wait_for("a container goes without what its pod may have been given")["error"]


@needs_mknod
def test_a_read_that_hangs_costs_the_first_container_a_wait_and_nobody_the_session(
    runtime: Runtime, plugin: Plugin, root: Path
) -> None:
    """(A13)"""
    web, later = pod("web"), pod("later")
    make_node(root, "uburma/udma2", NULL)
    add_device(root, "ub0/00042", "1", "1:3")
    numa = root / "sys/devices/ub0/00042/numa_node"
    numa.unlink()
    os.mkfifo(numa)
    attach(root, "uburma/udma2", container=web.id)
    plugin.start()
    runtime.register()
    for each in (web, later):
        runtime.run_pod(each)
        assert isinstance(runtime.create(container(each)), nri_pb2.ContainerAdjustment)
    assert (
        "could not be read within"
        in plugin.wait_for("a container goes without what its pod may have been given", 2)["error"]
    )


def test_what_is_no_file_in_place_of_a_record_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(volume(tmp_path).with_name("uid@pipe.json"))
    with pytest.raises(HostFault, match=r"uid@pipe\.json is not a file"):
        given(tmp_path)


@needs_mknod
@pytest.mark.parametrize(
    "values",
    [
        {"state": State.ATTACHING},
        {"state": State.DETACHING},
        {"boot_id": "the last boot"},
        {"pod_uid": "another"},
        {"container": "another"},
    ],
)
def test_only_a_finished_attachment_of_this_pod_and_boot_counts(values: dict[str, Any], tmp_path: Path) -> None:
    make_node(tmp_path, "uburma/udma2")
    attach(tmp_path, "uburma/udma2", **values)
    assert given(tmp_path) == []


@needs_mknod
def test_a_damaged_record_of_an_attachment_gives_nothing(tmp_path: Path) -> None:
    make_node(tmp_path, "uburma/udma2")
    attach(tmp_path, "uburma/udma2")
    ledger = Ledger(Roots(tmp_path))
    for folder in (ledger.folder, ledger.copies):
        (path,) = folder.iterdir()
        path.write_text(path.read_text()[:-20])
    assert given(tmp_path) == []


@needs_mknod
@pytest.mark.parametrize(
    "node", ["../secret", "/dev/null", "link", "folder/../uburma/udma2/../../../secret", "none", ""]
)
def test_no_node_outside_dev_and_none_behind_a_link_is_given(node: str, tmp_path: Path) -> None:
    make_node(tmp_path, "uburma/udma2")
    os.mknod(tmp_path / "secret", stat.S_IFCHR | 0o666, os.makedev(*NULL))
    (tmp_path / "dev/link").symlink_to("uburma/udma2")
    (tmp_path / "dev/folder").symlink_to("..")
    attach(tmp_path, node, "uburma/udma2")
    assert given(tmp_path) == ["/dev/uburma/udma2"]


@needs_mknod
def test_only_character_devices_are_given(tmp_path: Path) -> None:
    make_node(tmp_path, "uburma/udma2")
    os.mknod(tmp_path / "dev/disk", stat.S_IFBLK | 0o660, os.makedev(7, 0))
    (tmp_path / "dev/file").touch()
    attach(tmp_path, "disk", "file", "uburma")
    assert given(tmp_path) == ["/dev/uburma/udma2"]


@needs_mknod
def test_what_the_container_has_from_kubelet_is_not_added_again(tmp_path: Path) -> None:
    """Two that set the same device make the runtime refuse the container."""
    make_node(tmp_path, "uburma/udma2", NULL)
    make_node(tmp_path, "ummu/tid", ZERO)
    attach(tmp_path, "uburma/udma2", "ummu/tid")
    assert given(tmp_path, POD, ("c", *NULL)) == ["/dev/ummu/tid"]
    assert given(tmp_path, POD, ("b", *NULL)) == ["/dev/uburma/udma2", "/dev/ummu/tid"]


@needs_mknod
def test_a_volumes_record_counts_only_for_the_pod_that_it_names_inside_and_out(tmp_path: Path) -> None:
    make_node(tmp_path, "shm")
    volume(tmp_path, "shm", uid="other")
    volume(tmp_path, "shm", name="other@vol")
    volume(tmp_path, "shm", name="uid-2@vol")
    assert given(tmp_path) == []
    assert given(tmp_path, Pod("sandbox", uid="../volumes/uid")) == []
    volume(tmp_path, "shm")
    assert given(tmp_path) == ["/dev/shm"]


@needs_mknod
def test_a_device_that_must_not_be_written_is_not_given(tmp_path: Path) -> None:
    make_node(tmp_path, "shm")
    volume(tmp_path, "shm", permissions="r")
    assert given(tmp_path) == []


@needs_mknod
def test_what_the_storage_plugin_writes_is_what_is_read(tmp_path: Path) -> None:
    make_node(tmp_path, "obmm_shmdev3")
    folder = tmp_path / "run/ub-node/volumes"
    folder.mkdir(parents=True)
    handover.write(folder, "uid", "ub-1", ["obmm_shmdev3"], is_read_only=False)
    assert given(tmp_path) == ["/dev/obmm_shmdev3"]
    handover.remove(folder, "uid", "ub-1")
    assert given(tmp_path) == []


@needs_mknod
@pytest.mark.parametrize("forge", ["file mode", "folder mode", "owner", "link"])
def test_a_record_that_others_than_root_could_have_written_is_refused(forge: str, tmp_path: Path) -> None:
    make_node(tmp_path, "shm")
    path = volume(tmp_path, "shm")
    if forge == "file mode":
        path.chmod(0o666)
    elif forge == "folder mode":
        path.parent.chmod(0o777)
    elif forge == "owner":
        os.chown(path, 12345, 12345)
    else:
        path.rename(tmp_path / "elsewhere.json")
        path.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(HostFault, match="others than root can write it"):
        given(tmp_path)


def test_a_sandbox_whose_id_is_a_path_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "run/ub-node/zerocopy/pods").mkdir(parents=True)
    for name in ("..", ".", "", "a/../.."):
        assert grants.read(Roots(tmp_path), Pod(name, uid=name), Container("c", name)) == Grants()


@needs_mknod
def test_a_node_is_given_as_it_is_on_the_host(tmp_path: Path) -> None:
    make_node(tmp_path, "shm", mode=0o640)
    os.chown(tmp_path / "dev/shm", 7, 8)
    volume(tmp_path, "shm")
    (found,) = grants.read(Roots(tmp_path), POD, Container("c", POD.id)).devices
    assert found == DeviceNode("/dev/shm", *NULL, 0o640, 7, 8)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"version": 1, "pod_uid": [], "devices": 5}'])
def test_no_record_keeps_later_containers_from_theirs(text: str, runtime: Runtime, plugin: Plugin, root: Path) -> None:
    """Whatever it says: the thread that reads records is there for the next."""
    plugin.start()
    runtime.register()
    web, other = pod("web"), pod("other")
    volume(root, uid=web.uid, name=f"{web.uid}@vol").write_text(text)
    for each in (web, web, other):
        runtime.run_pod(each)
        assert not runtime.create(container(each)).ListFields()
    doubts = plugin.lines("a container goes without what its pod may have been given")
    assert [line["pod"] for line in doubts] == ["shop/web", "shop/web"]
    assert not any("could not be read within" in line["error"] for line in doubts)

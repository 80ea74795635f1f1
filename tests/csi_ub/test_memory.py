"""Memory volumes: shared UB memory of a simulated super-node as a folder with device nodes and a manifest."""

import json
import mmap
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from csi_ub.config import PoolType
from csi_ub.engines import Engines
from csi_ub.engines.base import Reach
from csi_ub.engines.shm import ShmEngine, view
from csi_ub.memory import folder, handover, sizes
from csi_ub.model import AccessMode, Attachment, Capability, Spec, Volume, VolumeType
from csi_ub.noderecord import Debts
from csi_ub.nodevolumes import NodeVolumes
from csi_ub.pool import Pool
from csi_ub.pools import space
from csi_ub.reasons import OutOfRange
from csi_ub.volumes import Volumes
from tests.csi_ub.driver import RWO, Driver, capability, refused, ubnode
from tests.csi_ub.pools import unmount_below
from ubhost.errors import Exhausted
from ubhost.kernel import mountinfo
from ubhost.ubse.client import Ubse
from ubhost.ubse.shm import Shm
from ubsim.handles import SuperNodeHandle
from ubsim.ownership import Access
from ubsim.shared_memory import attach

Code = grpc.StatusCode
MiB = 1 << 20
scenario = pytest.mark.scenario({"name": "memory", "nodes": [{"name": "node", "count": 2, "devices": 1}]})


@pytest.fixture
def nodes(supernode: SuperNodeHandle) -> Iterator[list[Driver]]:
    config: dict[str, object] = {
        "peers": [{"node": name, "address": f"127.0.0.{at}"} for at, name in enumerate(supernode.nodes, 1)],
        "peer_port": 24200,
        "memory_quota": {"small": "256MiB", "*": "1GiB"},
    }
    drivers = [Driver.start(supernode.folder, name, config=config) for name in supernode.nodes]
    yield drivers
    for driver in drivers:
        driver.stop()
        unmount_below(driver.kubelet)  # the simulator has mounts of its own beside it


def memory(driver: Driver, name: str = "shared", namespace: str = "team", **more: str) -> csi.Volume:
    parameters = {"type": "memory", "csi.storage.k8s.io/pvc/namespace": namespace, **more}
    return driver.create(name, 100 * MiB, parameters=parameters)


def published(driver: Driver, volume: csi.Volume) -> Path:
    driver.stage(volume)
    return driver.publish(volume)


def manifest(pod: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((pod / "manifest.json").read_text())
    return found


def device(pod: Path) -> Path:
    (path,) = pod.glob("obmm_shmdev*")
    return path


@scenario
@pytest.mark.kernel
def test_nodes_share_strong_memory_and_give_it_back_in_order(supernode: SuperNodeHandle, nodes: list[Driver]) -> None:
    volume = memory(nodes[0])
    assert volume.capacity_bytes == 128 * MiB
    pods = [published(node, volume) for node in nodes]
    told = manifest(pods[1])
    assert (told["size"], told["consistency"], told["open_flags"]) == (128 * MiB, "strong", ["O_RDWR", "O_SYNC"])
    assert told["memids"] == [int(device(pods[1]).name.removeprefix("obmm_shmdev"))]
    with device(pods[0]).open("r+b", buffering=0) as here, mmap.mmap(here.fileno(), 128 * MiB) as mapped:
        mapped[:5] = b"hello"
        assert device(pods[1]).read_bytes()[:5] == b"hello"
        with refused(Code.FAILED_PRECONDITION, naming="in use"):
            nodes[0].unpublish(volume)
    rows = json.loads(ubnode(nodes[1], "volumes", "--json").stdout)
    assert [(row["type"], row["owner"], row["condition"]) for row in rows] == [("memory", "node0", "well")]

    with refused(Code.FAILED_PRECONDITION, naming="node0"):
        nodes[0].delete(volume.volume_id)
    nodes[0].unpublish(volume)
    nodes[0].unstage(volume)
    with refused(Code.FAILED_PRECONDITION, naming="node1"):
        nodes[0].delete(volume.volume_id)
    assert device(pods[1]).read_bytes()[:5] == b"hello"
    for node in (nodes[1], nodes[1]):
        node.unpublish(volume)
        node.unstage(volume)
    nodes[0].delete(volume.volume_id)
    nodes[0].delete(volume.volume_id)
    assert not any(list((node.root / "dev").glob("obmm_shmdev*")) for node in nodes)
    assert not any(list((node.root / "run/ub-node/memory").iterdir()) for node in nodes)


@scenario
@pytest.mark.kernel
def test_eventual_memory_is_published_and_refreshed_page_by_page(
    supernode: SuperNodeHandle, nodes: list[Driver]
) -> None:
    volume = memory(nodes[1], consistency="eventual")
    pods = [published(node, volume) for node in nodes]
    told = [manifest(pod) for pod in pods]
    assert told[0]["open_flags"] == ["O_RDWR"]
    assert "obmm_set_ownership" in str(told[0]["rule"])
    ids = [each["memids"][0] for each in told]  # type: ignore[index]
    with (
        attach(nodes[0].root, ids[0], cached=True) as writer,
        attach(nodes[1].root, ids[1], cached=True) as reader,
    ):
        writer.set_ownership(0, 4096, Access.WRITE)
        writer.write(0, b"hello")
        assert device(pods[1]).read_bytes()[:5] == bytes(5), "not before it is published"
        writer.set_ownership(0, 4096, Access.NONE)
        reader.set_ownership(0, 4096, Access.READ)
        assert device(pods[1]).read_bytes()[:5] == reader.read(0, 5) == b"hello"
        nodes[0].unpublish(volume)
        with refused(Code.ABORTED, naming="DETACH"):
            nodes[0].unstage(volume)  # somebody has it open: kubelet tries again
    deadline = time.monotonic() + 60
    while (nodes[0].root / "run/ub-node/memory" / volume.volume_id).exists():
        assert time.monotonic() < deadline, "the stand-in has not seen the file closed"
        with suppress(grpc.RpcError):
            nodes[0].unstage(volume)


@scenario
@pytest.mark.kernel
def test_a_namespace_gets_its_quota_over_all_nodes_and_no_more(nodes: list[Driver]) -> None:
    first = memory(nodes[0], "one", namespace="small")
    second = memory(nodes[1], "two", namespace="small")
    with refused(Code.RESOURCE_EXHAUSTED, naming="small"):
        memory(nodes[0], "three", namespace="small")
    memory(nodes[0], "three", namespace="other")
    assert memory(nodes[0], "one", namespace="small").volume_id == first.volume_id
    nodes[1].delete(second.volume_id)
    memory(nodes[0], "four", namespace="small")


@scenario
@pytest.mark.kernel
def test_what_memory_cannot_do_is_refused_and_said(nodes: list[Driver]) -> None:
    volume = memory(nodes[0])
    for code, wrong in (
        (Code.INVALID_ARGUMENT, {"writers": "single", "consistency": "eventual"}),
        (Code.INVALID_ARGUMENT, {"engine": "bind"}),
        (Code.INVALID_ARGUMENT, {"replicas": "3"}),
    ):
        with refused(code, naming=next(iter(wrong))):
            memory(nodes[0], "other", "team", **wrong)
    most = nodes[0].controller.GetCapacity(csi.GetCapacityRequest(parameters={"type": "memory"})).maximum_volume_size
    assert most.value == 256 << 30  # UBSE's, whatever the disk of the pool has left
    with refused(Code.OUT_OF_RANGE, naming=str(256 << 30)):
        nodes[0].create("huge", most.value + 1, parameters={"type": "memory"})
    with refused(Code.OUT_OF_RANGE, naming="blocks"):
        nodes[0].create("odd", MiB, 2 * MiB, parameters={"type": "memory"})
    with refused(Code.INVALID_ARGUMENT, naming="ReadWriteMany"):
        nodes[0].create("rwo", mode=RWO, parameters={"type": "memory"})
    with refused(Code.FAILED_PRECONDITION, naming="snapshots"):
        nodes[0].controller.CreateSnapshot(csi.CreateSnapshotRequest(name="s", source_volume_id=volume.volume_id))
    clone = csi.CreateVolumeRequest(name="c", volume_capabilities=[capability()])
    clone.volume_content_source.volume.volume_id = volume.volume_id
    with refused(Code.FAILED_PRECONDITION, naming="clones"):
        nodes[0].controller.CreateVolume(clone)
    clone.volume_content_source.volume.volume_id = nodes[0].create("files", parameters={"engine": "bind"}).volume_id
    clone.parameters["type"] = "memory"
    with refused(Code.FAILED_PRECONDITION, naming="starts empty"):
        nodes[0].controller.CreateVolume(clone)
    with refused(Code.FAILED_PRECONDITION, naming="grow"):
        nodes[0].controller.ControllerExpandVolume(
            csi.ControllerExpandVolumeRequest(
                volume_id=volume.volume_id, capacity_range=csi.CapacityRange(required_bytes=1 << 30)
            )
        )
    assert (
        not nodes[0]
        .controller.ValidateVolumeCapabilities(
            csi.ValidateVolumeCapabilitiesRequest(volume_id=volume.volume_id, volume_capabilities=[capability(RWO)])
        )
        .HasField("confirmed")
    )


@pytest.mark.kernel
def test_without_shared_memory_create_says_so(driver: Driver) -> None:
    with refused(Code.FAILED_PRECONDITION, naming="no shared UB memory on this node"):
        driver.create(parameters={"type": "memory"})


def test_sizes_are_whole_blocks_within_limits() -> None:
    assert sizes.rounded(0, 0) == sizes.rounded(1, 0) == 128 * MiB
    assert sizes.rounded(129 * MiB, 256 * MiB) == 256 * MiB
    with pytest.raises(OutOfRange):
        sizes.rounded(1, 64 * MiB)
    with pytest.raises(OutOfRange):
        sizes.rounded(1 << 50, 0)


def test_a_quota_is_of_the_namespace_or_of_every_other() -> None:
    used = 128 * MiB
    sizes.refuse_over_quota("team", 128 * MiB, used, {"team": 256 * MiB})
    for quotas in ({"team": 128 * MiB}, {"*": 128 * MiB}):
        with pytest.raises(Exhausted, match="team"):
            sizes.refuse_over_quota("team", 128 * MiB, used, quotas)
    sizes.refuse_over_quota("team", 1 << 40, used, {"other": 1})
    assert sizes.quota("team", {"other": 1}) is None
    assert len(sizes.tag("n" * 63)) == 32


@pytest.mark.kernel
def test_real_device_nodes_are_copied_and_handed_over(tmp_path: Path) -> None:
    dev, pod = tmp_path / "dev", tmp_path / "pod"
    dev.mkdir()
    try:
        os.mknod(dev / "obmm_shmdev3", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("device nodes need real root")
    region = view(Shm("a", 128 * MiB, is_cacheable=False, info="", memids=(3,)))
    folder.make(pod, "ub-1", region, dev)
    folder.make(pod, "ub-1", region, dev)
    state = (pod / "obmm_shmdev3").lstat()
    assert (state.st_rdev, stat.S_IMODE(state.st_mode)) == (os.makedev(1, 3), 0o666)
    assert folder.devices(region, dev) == ("obmm_shmdev3",)
    records = tmp_path / "run/ub-node/volumes"
    records.mkdir(parents=True, mode=0o700)
    handover.write(records, "1234-abcd", "ub-1", folder.devices(region, dev), is_read_only=False)
    (record,) = records.iterdir()
    assert record.name == "1234-abcd@ub-1.json"
    assert json.loads(record.read_text())["devices"] == [{"node": "obmm_shmdev3", "permissions": "rw"}]
    handover.remove(records, "1234-abcd", "ub-1")
    assert list(records.iterdir()) == []
    assert mountinfo.below(mountinfo.read(), tmp_path) == ()


@pytest.mark.kernel
def test_a_pod_is_let_in_before_it_gets_the_volume_so_that_no_kill_comes_between(tmp_path: Path) -> None:
    target, seen = tmp_path / "pods/pod1/mount", []

    class Memory(ShmEngine):
        """Memory without UBSE, which notes whether it was mounted already when it was asked for its devices."""

        def stage(self, reach: Reach) -> int:
            return os.open(self.run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

        def attach(self, reach: Reach, attachment: Attachment) -> None:
            """Everybody may."""

        def devices(self, reach: Reach) -> tuple[str, ...]:
            seen.append(mountinfo.at(mountinfo.read(), target))
            return ("obmm_shmdev3",)

    for name in ("pool", "memory", "staging"):
        (tmp_path / name).mkdir()
    pool = Pool("default", tmp_path / "pool", space(PoolType.DIR))
    pool.open()
    engine = Memory(tmp_path, tmp_path / "memory", {}, Ubse(tmp_path / "none"))
    node = NodeVolumes(
        Volumes("node0", (pool,), Engines({engine.name: engine})), tmp_path / "run", Debts(tmp_path / "debts")
    )
    node.open()
    spec = Spec(type=VolumeType.MEMORY)
    volume = pool.create(Volume("", "shared", "node0", pool.name, spec, engine=engine.name))
    use, staging = Capability(AccessMode.MULTI_NODE_MULTI_WRITER), str(tmp_path / "staging")
    try:
        node.stage(volume.id, staging, use, {})
        node.publish(volume.id, staging, str(target), use, {}, readonly=False)
        assert seen == [()]
        assert len(mountinfo.at(mountinfo.read(), target)) == 1
        assert (tmp_path / f"run/pod1@{volume.id}.json").exists()
        node.unpublish(volume.id, str(target))
        assert not (tmp_path / f"run/pod1@{volume.id}.json").exists()
    finally:
        unmount_below(tmp_path)


def test_what_root_in_a_pod_leaves_in_the_folder_reaches_no_file_and_gives_no_device(tmp_path: Path) -> None:
    dev, pod, secret = tmp_path / "dev", tmp_path / "pod", tmp_path / "passwd"
    dev.mkdir()
    for name in ("obmm_shmdev3", "obmm_shmdev7"):
        (dev / name).touch()
    secret.write_text("root")
    secret.chmod(0o600)
    region = view(Shm("a", 128 * MiB, is_cacheable=False, info="", memids=(3,)))
    folder.make(pod, "ub-1", region, dev)
    for name in (".manifest", ".draft", ".pod.draft", "manifest.json", "obmm_shmdev3", "obmm_shmdev7"):
        (pod / name).unlink(missing_ok=True)
        (pod / name).symlink_to(secret)
    folder.make(pod, "ub-1", region, dev)
    assert (secret.read_text(), stat.S_IMODE(secret.stat().st_mode)) == ("root", 0o600)
    assert manifest(pod)["memids"] == [3]
    assert (pod / "obmm_shmdev3").samefile(dev / "obmm_shmdev3")
    assert not (pod / "obmm_shmdev7").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dev", "passwd", "pod"]


def test_the_pod_is_known_by_what_kubelet_says_or_by_its_path() -> None:
    path = "/var/lib/kubelet/pods/0a1b-22/volumes/kubernetes.io~csi/pvc/mount"
    assert handover.pod_of({}, path) == "0a1b-22"
    assert handover.pod_of({"csi.storage.k8s.io/pod.uid": "ffff"}, path) == "ffff"
    assert handover.pod_of({"csi.storage.k8s.io/pod.uid": "../x"}, path) is None
    assert handover.pod_of({}, "/somewhere/else") is None

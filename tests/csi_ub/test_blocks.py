"""Volumes of type block: what a pod gets is a device, of the size it asked for, and none is left over."""

import fcntl
import mmap
import os
import shutil
import stat
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from csi_ub.blocks import Blocks
from tests.csi_ub.cluster import cluster, daemons, kill, wait
from tests.csi_ub.driver import RWO, RWX, Driver, StartDriver, capability, refused
from tests.csi_ub.pools import make_btrfs
from ubhost.errors import Unsupported
from ubhost.kernel import loop, mountinfo

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not os.access("/dev/loop-control", os.W_OK), reason="loop devices need the machine's own root"),
]
Code = grpc.StatusCode
SIZE = 8 << 20
_GET_SIZE = 0x80081272  # BLKGETSIZE64
BLOCK = capability(RWX, block=True)


def create(driver: Driver, name: str = "pvc", size: int = SIZE, **more: str) -> csi.Volume:
    request = csi.CreateVolumeRequest(name=name, volume_capabilities=[BLOCK], parameters={"type": "block", **more})
    request.capacity_range.required_bytes = size
    return driver.controller.CreateVolume(request).volume


def stage(driver: Driver, volume: csi.Volume, wanted: csi.VolumeCapability = BLOCK) -> None:
    driver.stage(volume, use=wanted)


def publish(
    driver: Driver, volume: csi.Volume, pod: str = "pod1", *, readonly: bool = False, target: Path | None = None
) -> Path:
    return driver.publish(volume, pod, readonly=readonly, target=target, use=BLOCK)


def used(driver: Driver, volume: csi.Volume) -> Path:
    stage(driver, volume)
    return publish(driver, volume)


def unused(driver: Driver, volume: csi.Volume) -> None:
    driver.unpublish(volume)
    driver.unstage(volume)


def size(device: Path) -> int:
    with device.open("rb") as file:
        (found,) = struct.unpack("Q", fcntl.ioctl(file, _GET_SIZE, bytes(8)))
    return int(found)


def write(device: Path, content: bytes, offset: int = 0) -> None:
    with device.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), content, offset)
        os.fsync(file.fileno())


def read(device: Path, count: int, offset: int = 0) -> bytes:
    with device.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), count, offset)


def read_direct(device: Path) -> bytes:
    """Read a block past the cache of the device, which is another one on each node."""
    descriptor, block = os.open(device, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 4096)
    try:
        os.preadv(descriptor, [block], 0)
        return bytes(block)
    finally:
        os.close(descriptor)


def loops(volume: csi.Volume) -> list[loop.Loop]:
    return [each for each in loop.all_attached() if each.name.startswith(volume.volume_id)]


def stats(driver: Driver, volume: csi.Volume, path: Path) -> csi.NodeGetVolumeStatsResponse:
    return driver.rpc.NodeGetVolumeStats(
        csi.NodeGetVolumeStatsRequest(volume_id=volume.volume_id, volume_path=str(path))
    )


@pytest.fixture
def volume(driver: Driver) -> Iterator[csi.Volume]:
    volume = create(driver)
    yield volume
    for each in loops(volume):
        loop.detach(each.number)


def test_a_pod_has_a_device_that_keeps_what_was_written_and_goes_without_a_trace(
    driver: Driver, volume: csi.Volume
) -> None:
    assert volume.capacity_bytes == SIZE
    target = used(driver, volume)
    assert stat.S_ISBLK(target.stat().st_mode)
    assert size(target) == SIZE
    write(target, b"the end", SIZE - 7)
    assert publish(driver, volume) == target, "a repeated call"
    assert len(mountinfo.at(mountinfo.read(), target)) == len(loops(volume)) == 1
    driver.unpublish(volume)
    driver.unpublish(volume)
    assert not target.exists()
    assert loops(volume) == []
    assert list((driver.root / "run/ub-node/volumes/blocks").iterdir()) == []
    assert read(publish(driver, volume), 7, SIZE - 7) == b"the end"
    with refused(Code.FAILED_PRECONDITION, naming="published"):
        driver.unstage(volume)
    unused(driver, volume)
    driver.delete(volume.volume_id)
    assert loops(volume) == []
    assert list((driver.pool / "volumes").iterdir()) == []


def test_a_device_that_a_gone_pod_has_open_is_not_taken_from_the_next_pod(
    driver: Driver, volume: csi.Volume, tmp_path: Path
) -> None:
    """(5.9, 5.53) Who has it open has it by a node of its own, as containers do."""
    first = used(driver, volume)
    os.mknod(tmp_path / "node", stat.S_IFBLK | 0o600, first.stat().st_rdev)
    with (tmp_path / "node").open("r+b", buffering=0):
        for call in (driver.unpublish, driver.unpublish, driver.unstage):
            with refused(Code.FAILED_PRECONDITION, naming="still open"):
                call(volume)
        second = publish(driver, volume, "pod2")
        write(second, b"pod2")
    assert read(second, 4) == b"pod2", "the first pod's last close ended nothing"
    driver.unpublish(volume, "pod2")
    driver.unstage(volume)
    assert loops(volume) == []
    assert list((driver.root / "run/ub-node/volumes/blocks").iterdir()) == []


def test_a_device_that_is_open_for_a_moment_is_waited_for(driver: Driver, volume: csi.Volume, tmp_path: Path) -> None:
    os.mknod(tmp_path / "node", stat.S_IFBLK | 0o600, used(driver, volume).stat().st_rdev)
    file = (tmp_path / "node").open("rb", buffering=0)  # as udev looks into it
    closing = threading.Timer(0.3, file.close)
    closing.start()
    unused(driver, volume)
    closing.join()
    assert loops(volume) == []


@pytest.mark.parametrize("stranger", ["*", "ub-*", "?", "/", "/*", "**", "[!x]*", "../*", "{id}*", "{id}."])
def test_an_id_is_no_pattern(driver: Driver, volume: csi.Volume, stranger: str) -> None:
    target = used(driver, volume)
    it = csi.Volume(volume_id=stranger.format(id=volume.volume_id[:-1]))
    with suppress(grpc.RpcError):
        driver.rpc.NodeUnpublishVolume(csi.NodeUnpublishVolumeRequest(volume_id=it.volume_id, target_path=str(target)))
    assert mountinfo.at(mountinfo.read(), target) != ()
    write(target, b"still there")
    nothing = str(driver.root / "nothing")
    driver.rpc.NodeUnpublishVolume(csi.NodeUnpublishVolumeRequest(volume_id=it.volume_id, target_path=nothing))
    driver.rpc.NodeUnstageVolume(csi.NodeUnstageVolumeRequest(volume_id=it.volume_id, staging_target_path=nothing))
    unused(driver, volume)


def test_what_others_call_their_devices_and_files_is_nothing_to_us(
    driver: Driver, volume: csi.Volume, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(1 << 20))
    with image.open("rb") as file:
        other = loop.attach(file.fileno(), "\u00e4" * 40, is_read_only=True)  # cut inside a character, as by losetup
    try:
        used(driver, volume)
        blocks = driver.root / "run/ub-node/volumes/blocks"
        for junk in (f"{volume.volume_id}.junk", f"{volume.volume_id}.1.rw.old", "junk"):
            (blocks / junk).touch()
        assert publish(driver, volume, "pod2").exists()
        driver.unpublish(volume, "pod2")
        unused(driver, volume)
        assert len(list(blocks.iterdir())) == 3
    finally:
        loop.detach(other)


def test_pods_of_a_node_share_one_device_until_the_last_has_gone(driver: Driver, volume: csi.Volume) -> None:
    first = used(driver, volume)
    second = publish(driver, volume, "pod2")
    assert len(loops(volume)) == 1
    assert first.stat().st_rdev == second.stat().st_rdev, "two devices would each have a cache of its own"
    write(first, b"seen")
    driver.unpublish(volume, "pod1")
    assert read(second, 4) == b"seen"
    driver.unpublish(volume, "pod2")
    assert loops(volume) == []
    driver.unstage(volume)


def test_a_pod_that_may_only_read_cannot_write_whatever_it_opens(driver: Driver, volume: csi.Volume) -> None:
    writer = used(driver, volume)
    write(writer, b"before")
    reader = publish(driver, volume, "pod2", readonly=True)
    assert read(reader, 6) == b"before"
    with pytest.raises(OSError, match=r"not permitted|Read-only"):
        write(reader, b"after!")
    node = reader.with_name("of its own")
    os.mknod(node, stat.S_IFBLK | 0o600, reader.stat().st_rdev)  # as a container has it, on no mount of ours
    with pytest.raises(OSError, match=r"not permitted|Read-only"):
        write(node, b"after!")
    assert read(writer, 6) == b"before"
    with refused(Code.ALREADY_EXISTS):
        publish(driver, volume, "pod2")
    driver.unpublish(volume, "pod2")
    assert [each.is_read_only for each in loops(volume)] == [False]
    unused(driver, volume)


def test_a_device_grows_under_its_pod_and_also_while_no_pod_has_it(driver: Driver, volume: csi.Volume) -> None:
    target = used(driver, volume)
    request = csi.ControllerExpandVolumeRequest(volume_id=volume.volume_id)
    for wanted in (2 * SIZE, 2 * SIZE + 1):
        request.capacity_range.required_bytes = wanted
        grown = driver.controller.ControllerExpandVolume(request)
        assert grown.node_expansion_required
        assert wanted <= grown.capacity_bytes < wanted + 4096
        expand = csi.NodeExpandVolumeRequest(volume_id=volume.volume_id, volume_path=str(target))
        assert driver.rpc.NodeExpandVolume(expand).capacity_bytes == grown.capacity_bytes
        assert size(target) == grown.capacity_bytes
    unused(driver, volume)
    request.capacity_range.required_bytes = 4 * SIZE
    driver.controller.ControllerExpandVolume(request)
    assert size(used(driver, volume)) == 4 * SIZE
    unused(driver, volume)


def test_statistics_are_of_the_device_and_say_that_it_lost_its_disk(driver: Driver, volume: csi.Volume) -> None:
    target = used(driver, volume)
    found = stats(driver, volume, target)
    assert [(each.unit, each.total) for each in found.usage] == [(csi.VolumeUsage.BYTES, SIZE)]
    assert not found.volume_condition.abnormal
    with refused(Code.NOT_FOUND):
        stats(driver, volume, target.with_name("elsewhere"))
    loop.detach(loops(volume)[0].number)
    assert "lost its disk" in stats(driver, volume, target).volume_condition.message
    unused(driver, volume)


def test_a_copy_is_a_device_with_the_same_bytes_and_only_devices_are_copied_to_devices(
    driver: Driver, volume: csi.Volume
) -> None:
    write(used(driver, volume), b"original")
    unused(driver, volume)
    taken = csi.CreateSnapshotRequest(name="snapshot", source_volume_id=volume.volume_id)
    snapshot = driver.controller.CreateSnapshot(taken).snapshot
    write(used(driver, volume), b"changed!")
    unused(driver, volume)
    request = csi.CreateVolumeRequest(name="copy", volume_capabilities=[BLOCK], parameters={"type": "block"})
    request.capacity_range.required_bytes = 2 * SIZE
    request.volume_content_source.snapshot.snapshot_id = snapshot.snapshot_id
    copy = driver.controller.CreateVolume(request).volume
    target = used(driver, copy)
    assert (size(target), read(target, 8)) == (2 * SIZE, b"original")
    unused(driver, copy)
    request.name = "no device"
    request.volume_content_source.volume.volume_id = driver.create("files").volume_id
    with refused(Code.INVALID_ARGUMENT, naming="type block"):
        driver.controller.CreateVolume(request)
    assert sorted((driver.pool / "new").iterdir()) == []


def test_a_device_is_asked_for_as_a_device_and_files_as_files(driver: Driver, volume: csi.Volume) -> None:
    with refused(Code.INVALID_ARGUMENT, naming="volumeMode: Block"):
        driver.create(parameters={"type": "block"})
    files = driver.create("files")
    for wanted, it, name in ((capability(), volume, "volumeMode: Block"), (BLOCK, files, "no block device")):
        with refused(Code.FAILED_PRECONDITION, naming=name):
            stage(driver, it, wanted)
    for wrong in ({"consistency": "eventual"}, {"consistency": "close-to-open"}, {"maxStaleness": "5s"}):
        with refused(Code.INVALID_ARGUMENT):
            create(driver, "wrong", SIZE, **wrong)
    confirmed = driver.controller.ValidateVolumeCapabilities(
        csi.ValidateVolumeCapabilitiesRequest(
            volume_id=volume.volume_id, volume_capabilities=[BLOCK, capability(RWO, block=True)]
        )
    )
    assert len(confirmed.confirmed.volume_capabilities) == 2


def test_what_somebody_else_put_at_the_target_stays(driver: Driver, volume: csi.Volume) -> None:
    stage(driver, volume)
    folder, file = driver.target(volume, "pod1"), driver.target(volume, "pod2")
    folder.mkdir(parents=True)
    file.parent.mkdir(parents=True)
    file.write_text("somebody's")
    for pod in ("pod1", "pod2"):
        with refused(Code.ALREADY_EXISTS, naming="not a file"):
            publish(driver, volume, pod)
        with refused(Code.FAILED_PRECONDITION, naming="no file of ours"):
            driver.unpublish(volume, pod)
    assert file.read_text() == "somebody's"
    assert loops(volume) == [], "a refused call leaves no device"
    driver.unstage(volume)


def test_a_new_driver_finds_the_devices_of_the_old_one(driver: Driver, volume: csi.Volume) -> None:
    target = used(driver, volume)
    with target.open("r+b", buffering=0) as held:
        driver.kill()
        os.pwrite(held.fileno(), b"while nobody looked", 0)
        driver.restart()
        assert publish(driver, volume) == target
        with refused(Code.FAILED_PRECONDITION, naming="in use"):
            driver.unpublish(volume)
        assert os.pread(held.fileno(), 19, 0) == b"while nobody looked"
    assert len(loops(volume)) == 1
    unused(driver, volume)
    assert loops(volume) == []


def test_a_node_without_loop_devices_says_so(tmp_path: Path) -> None:
    blocks = Blocks("node0", tmp_path, has_loops=lambda: loop.is_there(tmp_path / "absent"))
    with pytest.raises(Unsupported, match="modprobe loop"):
        blocks.attach("ub-none", 0, SIZE, is_read_only=False)


def test_the_node_of_a_device_that_is_gone_says_nothing_of_the_one_that_is_there(
    driver: Driver, volume: csi.Volume
) -> None:
    used(driver, volume)
    driver.unpublish(volume)
    folder = driver.root / "run/ub-node/volumes/blocks"
    left = folder / f"{volume.volume_id}.4711.rw"  # a driver was killed between the device and its node
    os.mknod(left, stat.S_IFBLK | 0o600, os.makedev(7, 4711))
    target = publish(driver, volume)
    assert not stats(driver, volume, target).volume_condition.abnormal
    assert not left.exists()
    unused(driver, volume)
    assert list(folder.iterdir()) == []


def test_a_disk_on_a_pool_with_quotas_is_written_over_and_over_without_outgrowing_it(
    start: StartDriver, tmp_path: Path
) -> None:
    (tmp_path / "pool").mkdir()
    make_btrfs(tmp_path / "image", tmp_path / "pool")
    driver = start(config={"pools": [{"name": "fast", "type": "btrfs", "path": str(tmp_path / "pool")}]})
    volume = create(driver)
    target = used(driver, volume)
    for number in range(3):
        with target.open("r+b", buffering=0) as file:
            for offset in range(0, SIZE, 12288):  # not as it was written before: old extents stay in part
                os.pwrite(file.fileno(), bytes([number]) * min(8192, SIZE - offset), offset)
            os.fsync(file.fileno())
    assert read(target, 1) == b"\2"
    unused(driver, volume)
    driver.delete(volume.volume_id)


@pytest.mark.skipif(not shutil.which("glusterfsd"), reason="glusterfs-server is not installed")
@pytest.mark.parametrize("replicas", ["1", "3"])
def test_nodes_share_a_device_past_their_caches_and_it_survives_what_its_engine_survives(
    start: StartDriver, replicas: str
) -> None:
    with cluster(start) as nodes:
        volume = create(nodes[0], replicas=replicas)
        first, second = (used(node, volume) for node in nodes[:2])
        assert size(second) == SIZE
        write(first, b"a" * 4096)
        assert read_direct(second) == b"a" * 4096
        if replicas == "3":
            kill(nodes[2], "brick")
            write(second, b"b" * 4096)
            assert read_direct(first) == b"b" * 4096
            wait(lambda: len(daemons(nodes[2], "brick")) == 1)
        request = csi.ControllerExpandVolumeRequest(volume_id=volume.volume_id)
        request.capacity_range.required_bytes = 2 * SIZE
        nodes[0].controller.ControllerExpandVolume(request)
        for node, target in zip(nodes[:2], (first, second), strict=True):
            expand = csi.NodeExpandVolumeRequest(volume_id=volume.volume_id, volume_path=str(target))
            assert node.rpc.NodeExpandVolume(expand).capacity_bytes == 2 * SIZE
            assert size(target) == 2 * SIZE
            unused(node, volume)
        assert loops(volume) == []
        nodes[0].delete(volume.volume_id)

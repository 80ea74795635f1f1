"""Lists, capacity, snapshots, clones, expansion, statistics: on a plain directory and on btrfs."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.wrappers_pb2 import Int64Value
from ubproto.csi.v1 import csi_pb2 as csi

from tests.csi_ub.driver import RWX, Driver, StartDriver, capability, refused
from tests.csi_ub.pools import make_btrfs, unmount_below

pytestmark = pytest.mark.kernel
Code = grpc.StatusCode
MiB = 1 << 20


@pytest.fixture
def btrfs(tmp_path: Path, start: StartDriver) -> Iterator[Driver]:
    (tmp_path / "pool").mkdir()
    make_btrfs(tmp_path / "image", tmp_path / "pool")
    yield start(config={"pools": [{"name": "fast", "type": "btrfs", "path": str(tmp_path / "pool")}]})
    unmount_below(tmp_path)


@pytest.fixture(params=["dir", "btrfs"])
def any_pool(request: pytest.FixtureRequest) -> Driver:
    driver: Driver = request.getfixturevalue("driver" if request.param == "dir" else "btrfs")
    return driver


def snapshot(driver: Driver, volume: csi.Volume, name: str = "snap") -> csi.Snapshot:
    request = csi.CreateSnapshotRequest(source_volume_id=volume.volume_id, name=name)
    return driver.controller.CreateSnapshot(request).snapshot


def create_from(
    driver: Driver, name: str, *, snapshot_id: str = "", volume_id: str = "", required: int = 0, limit: int = 0
) -> csi.Volume:
    request = csi.CreateVolumeRequest(name=name, volume_capabilities=[capability(RWX)])
    if snapshot_id:
        request.volume_content_source.snapshot.snapshot_id = snapshot_id
    else:
        request.volume_content_source.volume.volume_id = volume_id
    if required or limit:
        request.capacity_range.required_bytes, request.capacity_range.limit_bytes = required, limit
    return driver.controller.CreateVolume(request).volume


def published(driver: Driver, volume: csi.Volume) -> Path:
    driver.stage(volume)
    return driver.publish(volume)


def retire(driver: Driver, volume: csi.Volume) -> None:
    driver.unpublish(volume)
    driver.unstage(volume)


def stats(driver: Driver, volume: csi.Volume, path: Path) -> csi.NodeGetVolumeStatsResponse:
    request = csi.NodeGetVolumeStatsRequest(volume_id=volume.volume_id, volume_path=str(path))
    return driver.rpc.NodeGetVolumeStats(request)


def test_a_restored_snapshot_is_the_content_of_its_moment(any_pool: Driver) -> None:
    volume = any_pool.create("source", 20 * MiB)
    data = published(any_pool, volume)
    (data / "folder").mkdir(mode=0o751)
    (data / "folder/file").write_bytes(b"\0" * MiB + os.urandom(100))
    (data / "folder/file").chmod(0o640)
    os.chown(data / "folder/file", 1000, 2000)
    os.setxattr(data / "folder/file", "user.note", b"kept")
    (data / "link").symlink_to("folder/file")
    (data / "hard").hardlink_to(data / "folder/file")
    content = (data / "folder/file").read_bytes()
    retire(any_pool, volume)
    taken = snapshot(any_pool, volume)
    assert taken.ready_to_use
    assert taken.size_bytes == 20 * MiB
    assert taken.creation_time.seconds > 0
    (published(any_pool, volume) / "folder/file").write_text("changed later")
    restored = create_from(any_pool, "restored", snapshot_id=taken.snapshot_id)
    assert restored.content_source.snapshot.snapshot_id == taken.snapshot_id
    copy = published(any_pool, restored)
    state = (copy / "folder/file").stat()
    assert (copy / "folder/file").read_bytes() == content
    assert (stat.S_IMODE(state.st_mode), state.st_uid, state.st_gid, state.st_nlink) == (0o640, 1000, 2000, 2)
    assert os.getxattr(copy / "folder/file", "user.note") == b"kept"
    assert (copy / "link").readlink() == Path("folder/file")
    assert stat.S_IMODE((copy / "folder").stat().st_mode) == 0o751
    assert sorted(path.name for path in copy.iterdir()) == ["folder", "hard", "link"]


def test_a_clone_lives_on_when_its_source_is_deleted(any_pool: Driver) -> None:
    volume = any_pool.create("source", 20 * MiB)
    (published(any_pool, volume) / "file").write_text("content")
    retire(any_pool, volume)
    clone = create_from(any_pool, "clone", volume_id=volume.volume_id, required=30 * MiB)
    taken = snapshot(any_pool, volume)
    any_pool.delete(volume.volume_id)
    assert clone.content_source.volume.volume_id == volume.volume_id
    assert (published(any_pool, clone) / "file").read_text() == "content"
    restored = create_from(any_pool, "restored", snapshot_id=taken.snapshot_id)
    assert (published(any_pool, restored) / "file").read_text() == "content"


def test_a_snapshot_is_named_once(any_pool: Driver) -> None:
    one, two = any_pool.create("one"), any_pool.create("two")
    first = snapshot(any_pool, one)
    assert snapshot(any_pool, one) == first
    with refused(Code.ALREADY_EXISTS, naming=one.volume_id):
        snapshot(any_pool, two)
    for _ in range(2):
        any_pool.controller.DeleteSnapshot(csi.DeleteSnapshotRequest(snapshot_id=first.snapshot_id))
    any_pool.controller.DeleteSnapshot(csi.DeleteSnapshotRequest(snapshot_id="../../etc"))
    snapshot(any_pool, two)


def test_a_source_that_is_missing_or_too_large_is_refused(any_pool: Driver) -> None:
    volume = any_pool.create("source", 20 * MiB)
    with refused(Code.NOT_FOUND):
        create_from(any_pool, "a", snapshot_id="../../etc")
    with refused(Code.NOT_FOUND):
        create_from(any_pool, "a", volume_id=volume.volume_id[:-1] + "x")
    with refused(Code.OUT_OF_RANGE, naming=str(20 * MiB)):
        create_from(any_pool, "a", volume_id=volume.volume_id, required=MiB, limit=MiB)
    with refused(Code.NOT_FOUND):
        any_pool.controller.CreateSnapshot(csi.CreateSnapshotRequest(source_volume_id="nowhere", name="a"))
    clone = create_from(any_pool, "b", volume_id=volume.volume_id)
    with refused(Code.ALREADY_EXISTS):
        any_pool.create("b", 20 * MiB)
    assert create_from(any_pool, "b", volume_id=volume.volume_id) == clone


def test_a_plain_directory_says_that_it_cannot_copy_a_volume_in_use(driver: Driver) -> None:
    volume = driver.create()
    published(driver, volume)
    with refused(Code.FAILED_PRECONDITION, naming="btrfs"):
        snapshot(driver, volume)


def test_btrfs_copies_a_volume_in_use_at_one_moment(btrfs: Driver) -> None:
    volume = btrfs.create("source", 20 * MiB)
    data = published(btrfs, volume)
    (data / "file").write_text("before")
    taken = snapshot(btrfs, volume)
    (data / "file").write_text("after")
    restored = create_from(btrfs, "restored", snapshot_id=taken.snapshot_id)
    assert (published(btrfs, restored) / "file").read_text() == "before"


def test_a_quota_holds_and_grows_while_the_volume_is_in_use(btrfs: Driver) -> None:
    volume = btrfs.create("small", 10 * MiB)
    assert volume.capacity_bytes == 10 * MiB
    data = published(btrfs, volume)

    def fill(size: int) -> None:
        with (data / "file").open("wb") as file:
            for _ in range(size // MiB):
                file.write(os.urandom(MiB))
                file.flush()
                os.fsync(file.fileno())

    with pytest.raises(OSError, match="quota") as caught:
        fill(20 * MiB)
    assert caught.value.errno in (errno.ENOSPC, errno.EDQUOT)
    (data / "file").unlink()
    request = csi.ControllerExpandVolumeRequest(volume_id=volume.volume_id)
    request.capacity_range.required_bytes = 30 * MiB
    answer = btrfs.controller.ControllerExpandVolume(request)
    assert (answer.capacity_bytes, answer.node_expansion_required) == (30 * MiB, False)
    fill(20 * MiB)
    usage = {each.unit: each for each in stats(btrfs, volume, data).usage}
    usage_bytes = usage[csi.VolumeUsage.BYTES]
    assert usage_bytes.total == 30 * MiB
    assert 20 * MiB <= usage_bytes.used < 21 * MiB
    assert usage_bytes.available == usage_bytes.total - usage_bytes.used


def test_expansion_never_shrinks(any_pool: Driver) -> None:
    volume = any_pool.create("a", 20 * MiB)
    request = csi.ControllerExpandVolumeRequest(volume_id=volume.volume_id)
    for size, wanted in ((30, 30), (30, 30), (10, 30)):
        request.capacity_range.required_bytes = size * MiB
        assert any_pool.controller.ControllerExpandVolume(request).capacity_bytes == wanted * MiB
    request.volume_id = "unknown"
    with refused(Code.NOT_FOUND):
        any_pool.controller.ControllerExpandVolume(request)
    node = csi.NodeExpandVolumeRequest(volume_id=volume.volume_id, volume_path="/nowhere/at/all")
    with refused(Code.NOT_FOUND):
        any_pool.rpc.NodeExpandVolume(node)
    node.volume_path = str(published(any_pool, volume))
    assert any_pool.rpc.NodeExpandVolume(node).capacity_bytes == 30 * MiB


def test_more_than_the_pool_has_is_refused(btrfs: Driver) -> None:
    with refused(Code.RESOURCE_EXHAUSTED, naming="fast"):
        btrfs.create("huge", 1 << 40)
    assert btrfs.controller.ListVolumes(csi.ListVolumesRequest()).entries == []


def test_a_volume_that_fills_its_pool_is_found_when_it_is_asked_for_again(btrfs: Driver) -> None:
    capacity = btrfs.controller.GetCapacity(csi.GetCapacityRequest()).available_capacity
    volume = btrfs.create("all", capacity)
    with (published(btrfs, volume) / "file").open("wb") as file:
        file.write(os.urandom(32 * MiB))
        os.fsync(file.fileno())
    with refused(Code.RESOURCE_EXHAUSTED, naming="fast"):
        btrfs.create("more", capacity)
    assert btrfs.create("all", capacity) == volume


def test_capacity_answers_for_the_class_and_the_place_asked_for(any_pool: Driver) -> None:
    controller = any_pool.controller
    everywhere = controller.GetCapacity(csi.GetCapacityRequest())
    assert everywhere.available_capacity > 100 * MiB
    assert everywhere.maximum_volume_size == Int64Value(value=everywhere.available_capacity)
    place = any_pool.rpc.NodeGetInfo(csi.NodeGetInfoRequest()).accessible_topology
    here = csi.GetCapacityRequest(accessible_topology=place)
    assert controller.GetCapacity(here).available_capacity > 0
    here.accessible_topology.segments["topology.unifiedbus.com/node"] = "other"
    assert controller.GetCapacity(here).available_capacity == 0
    assert controller.GetCapacity(csi.GetCapacityRequest(parameters={"pool": "gold"})).available_capacity == 0
    block = csi.GetCapacityRequest(volume_capabilities=[capability(block=True)])
    assert controller.GetCapacity(block).available_capacity == 0


def test_a_volume_is_not_made_where_it_is_not_wanted(driver: Driver) -> None:
    request = csi.CreateVolumeRequest(name="a", volume_capabilities=[capability()])
    request.accessibility_requirements.requisite.add().segments["topology.unifiedbus.com/node"] = "other"
    with refused(Code.RESOURCE_EXHAUSTED, naming="node0"):
        driver.controller.CreateVolume(request)
    request.accessibility_requirements.requisite.add().segments["topology.unifiedbus.com/node"] = "node0"
    volume = driver.controller.CreateVolume(request).volume
    assert [dict(each.segments) for each in volume.accessible_topology] == [{"topology.unifiedbus.com/node": "node0"}]


def test_lists_come_in_pages_that_survive_deletion(any_pool: Driver) -> None:
    controller = any_pool.controller
    volumes = {any_pool.create(f"pvc-{i}").volume_id for i in range(5)}
    first = controller.ListVolumes(csi.ListVolumesRequest(max_entries=2))
    assert len(first.entries) == 2
    any_pool.delete(first.entries[1].volume.volume_id)
    rest = controller.ListVolumes(csi.ListVolumesRequest(starting_token=first.next_token))
    assert {entry.volume.volume_id for entry in (*first.entries, *rest.entries)} == volumes
    assert rest.next_token == ""
    assert not rest.entries[0].status.volume_condition.abnormal
    with refused(Code.ABORTED):
        controller.ListVolumes(csi.ListVolumesRequest(starting_token="invalid-token"))
    with refused(Code.INVALID_ARGUMENT):
        controller.ListVolumes(csi.ListVolumesRequest(max_entries=-1))


def test_snapshots_are_found_by_id_and_by_volume(any_pool: Driver) -> None:
    one, two = any_pool.create("one"), any_pool.create("two")
    taken = [snapshot(any_pool, volume, f"{volume.volume_id}-{i}") for volume in (one, two) for i in range(2)]

    def listed(**wanted: str) -> list[str]:
        answer = any_pool.controller.ListSnapshots(csi.ListSnapshotsRequest(**wanted))  # type: ignore[arg-type]
        return sorted(entry.snapshot.snapshot_id for entry in answer.entries)

    assert listed() == sorted(each.snapshot_id for each in taken)
    assert listed(snapshot_id=taken[0].snapshot_id) == [taken[0].snapshot_id]
    assert listed(source_volume_id=two.volume_id) == sorted(each.snapshot_id for each in taken[2:])
    assert listed(snapshot_id="none") == listed(source_volume_id="none") == []
    request = csi.GetSnapshotRequest(snapshot_id=taken[0].snapshot_id)
    assert any_pool.controller.GetSnapshot(request).snapshot == taken[0]
    with refused(Code.NOT_FOUND):
        any_pool.controller.GetSnapshot(csi.GetSnapshotRequest(snapshot_id="none"))


def test_a_volume_that_lost_its_data_is_abnormal(driver: Driver) -> None:
    volume = driver.create()
    request = csi.ControllerGetVolumeRequest(volume_id=volume.volume_id)
    assert not driver.controller.ControllerGetVolume(request).status.volume_condition.abnormal
    data = published(driver, volume)
    share = driver.pool / "volumes" / volume.volume_id / "share"
    (share / "data").rename(share / "lost")
    condition = driver.controller.ControllerGetVolume(request).status.volume_condition
    assert condition.abnormal
    assert volume.volume_id in condition.message
    (share / "lost").rename(share / "data")
    assert not stats(driver, volume, data).volume_condition.abnormal
    (share.parent / "volume.json").unlink()
    assert stats(driver, volume, data).volume_condition.abnormal
    with refused(Code.NOT_FOUND):
        driver.controller.ControllerGetVolume(csi.ControllerGetVolumeRequest(volume_id="unknown"))


def test_stats_are_for_mounted_volumes_only(any_pool: Driver) -> None:
    volume = any_pool.create("a", 20 * MiB)
    target = published(any_pool, volume)
    answer = stats(any_pool, volume, target)
    assert answer.HasField("volume_condition")
    assert answer.usage[0].total > 0
    assert stats(any_pool, volume, any_pool.staging(volume)).usage[0].total > 0
    any_pool.unpublish(volume)
    for path in (target, Path("some/path"), target.parent):
        with refused(Code.NOT_FOUND):
            stats(any_pool, volume, path)
    with refused(Code.INVALID_ARGUMENT):
        any_pool.rpc.NodeGetVolumeStats(csi.NodeGetVolumeStatsRequest(volume_path="some/path"))


def test_a_mount_group_owns_the_top_folder_and_what_is_made_in_it(any_pool: Driver) -> None:
    volume = any_pool.create()
    staging = any_pool.staging(volume)
    staging.mkdir(parents=True)
    (any_pool.root / "probe").mkdir()
    any_pool.rpc.NodeStageVolume(
        csi.NodeStageVolumeRequest(
            volume_id=volume.volume_id,
            staging_target_path=str(staging),
            volume_capability=capability(group="4242"),
            volume_context=volume.volume_context,
        )
    )
    assert staging.stat().st_gid == 4242
    assert staging.stat().st_mode & stat.S_ISGID
    (staging / "file").touch()
    assert (staging / "file").stat().st_gid == 4242
    with refused(Code.INVALID_ARGUMENT, naming="wheel"):
        any_pool.rpc.NodeStageVolume(
            csi.NodeStageVolumeRequest(
                volume_id=volume.volume_id,
                staging_target_path=str(staging),
                volume_capability=capability(group="wheel"),
            )
        )

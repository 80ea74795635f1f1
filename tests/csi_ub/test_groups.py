"""Snapshots of several volumes at one moment."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi
from ubproto.csi.v1 import csi_pb2_grpc

from tests.csi_ub.driver import RWX, Driver, StartDriver, capability, refused
from tests.csi_ub.pools import make_btrfs, unmount_below

pytestmark = pytest.mark.kernel
Code = grpc.StatusCode


@pytest.fixture(params=["dir", "btrfs"])
def driver(request: pytest.FixtureRequest, start: StartDriver, tmp_path: Path) -> Iterator[Driver]:
    pool = tmp_path / "pool"
    pool.mkdir()
    if request.param == "btrfs":
        make_btrfs(tmp_path / "image", pool)
    yield start(config={"pools": [{"name": "p", "type": request.param, "path": str(pool)}]})
    unmount_below(tmp_path)


def groups(driver: Driver) -> csi_pb2_grpc.GroupControllerStub:
    return csi_pb2_grpc.GroupControllerStub(driver.channel)


def take(driver: Driver, *volumes: csi.Volume, name: str = "group") -> csi.VolumeGroupSnapshot:
    ids = [volume.volume_id for volume in volumes]
    request = csi.CreateVolumeGroupSnapshotRequest(name=name, source_volume_ids=ids)
    return groups(driver).CreateVolumeGroupSnapshot(request).group_snapshot


def filled(driver: Driver, name: str, content: str) -> csi.Volume:
    volume = driver.create(name)
    driver.stage(volume)
    (driver.publish(volume) / "file").write_text(content)
    driver.unpublish(volume)
    driver.unstage(volume)
    return volume


def restored(driver: Driver, snapshot: csi.Snapshot, name: str = "from") -> str:
    """Return what a volume from ``snapshot`` holds."""
    request = csi.CreateVolumeRequest(name=f"{name}-{snapshot.snapshot_id}", volume_capabilities=[capability(RWX)])
    request.volume_content_source.snapshot.snapshot_id = snapshot.snapshot_id
    volume = driver.controller.CreateVolume(request).volume
    driver.stage(volume)
    return (driver.publish(volume) / "file").read_text()


def test_a_group_comes_and_goes_as_one_thing(driver: Driver) -> None:
    log, data = filled(driver, "log", "the log"), filled(driver, "data", "the data")
    group = take(driver, log, data)
    assert group.ready_to_use
    assert take(driver, data, log) == group, "the same volumes in another order"
    with refused(Code.ALREADY_EXISTS, naming="group"):
        take(driver, log)
    by_source = {each.source_volume_id: each for each in group.snapshots}
    assert {each.group_snapshot_id for each in group.snapshots} == {group.group_snapshot_id}
    assert restored(driver, by_source[log.volume_id]) == "the log"
    for volume in (log, data):
        driver.delete(volume.volume_id)
    assert restored(driver, by_source[data.volume_id]) == "the data", "a snapshot outlives its volume"
    driver.kill()
    driver.restart()
    get = csi.GetVolumeGroupSnapshotRequest(group_snapshot_id=group.group_snapshot_id)
    assert groups(driver).GetVolumeGroupSnapshot(get).group_snapshot == group
    listed = driver.controller.ListSnapshots(csi.ListSnapshotsRequest()).entries
    assert {each.snapshot.snapshot_id for each in listed} == {each.snapshot_id for each in group.snapshots}
    one = group.snapshots[0].snapshot_id
    with refused(Code.INVALID_ARGUMENT, naming=group.group_snapshot_id):
        driver.controller.DeleteSnapshot(csi.DeleteSnapshotRequest(snapshot_id=one))
    delete = csi.DeleteVolumeGroupSnapshotRequest(group_snapshot_id=group.group_snapshot_id)
    with refused(Code.INVALID_ARGUMENT):
        groups(driver).DeleteVolumeGroupSnapshot(
            csi.DeleteVolumeGroupSnapshotRequest(group_snapshot_id=group.group_snapshot_id, snapshot_ids=[one])
        )
    groups(driver).DeleteVolumeGroupSnapshot(delete)
    groups(driver).DeleteVolumeGroupSnapshot(delete)
    with refused(Code.NOT_FOUND):
        groups(driver).GetVolumeGroupSnapshot(get)
    assert not driver.controller.ListSnapshots(csi.ListSnapshotsRequest()).entries
    with refused(Code.NOT_FOUND, naming=one):
        restored(driver, group.snapshots[0], "late")


def test_a_group_that_would_show_two_moments_is_refused_whole(driver: Driver, request: pytest.FixtureRequest) -> None:
    volumes = [filled(driver, name, name) for name in ("one", "two")]
    for volume in volumes:
        driver.stage(volume)
    with refused(Code.FAILED_PRECONDITION, naming=volumes[1].volume_id):
        take(driver, *volumes)
    driver.unstage(volumes[0])
    if "dir" in request.node.name:
        with refused(Code.FAILED_PRECONDITION, naming=volumes[1].volume_id):
            take(driver, *volumes)
        driver.unstage(volumes[1])
    assert len(take(driver, *volumes).snapshots) == 2
    with refused(Code.NOT_FOUND, naming="ub-"):
        take(driver, volumes[0], csi.Volume(volume_id=volumes[0].volume_id[:-32] + "0" * 32), name="another")
    assert len(driver.controller.ListSnapshots(csi.ListSnapshotsRequest()).entries) == 2

"""Pools of type lvm: everything but LVM itself is real here, see ``tests.csi_ub.lvm``.

Real thin volumes are in the guest: e2e/inside/test_lvm.py.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from csi_ub.pools.lvm import LvmSpace
from csi_ub.pools.thin import Thin
from e2e.inside.files import MiB, counting, fill, is_of_one_moment
from tests.csi_ub import lvm
from tests.csi_ub.driver import RWO, RWX, Driver, StartDriver, capability, refused, ubnode
from ubhost.errors import HostFault, Unsupported
from ubhost.kernel import mountinfo, mounts

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not os.access("/dev/loop-control", os.W_OK), reason="loop devices need the machine's own root"),
]
Code = grpc.StatusCode
SIZE = 32 * MiB


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a volume group, and with its programs found first."""
    monkeypatch.setenv("PATH", f"{lvm.stand_in(tmp_path)}:{os.environ['PATH']}")
    (tmp_path / "pool").mkdir()
    yield tmp_path
    unmount(tmp_path)
    lvm.take_away(tmp_path)


@pytest.fixture
def driver(start: StartDriver, place: Path) -> Driver:
    return start(config=config(place))


def config(place: Path) -> dict[str, object]:
    return {"pools": [{"name": "fast", "type": "lvm", "path": str(place / "pool"), "thin_pool": "vg0/thin"}]}


def unmount(folder: Path) -> None:
    for mount in reversed(mountinfo.below(mountinfo.read(), folder.resolve())):
        mounts.unmount(Path(mount.target), lazy=True)


def create(
    driver: Driver, name: str = "pvc", size: int = SIZE, *, use: csi.VolumeCapability | None = None, **source: str
) -> csi.Volume:
    request = csi.CreateVolumeRequest(name=name, volume_capabilities=[use or capability()])
    request.parameters.update({"type": "block"} if use and use.HasField("block") else {})
    request.capacity_range.required_bytes = size
    if "snapshot" in source:
        request.volume_content_source.snapshot.snapshot_id = source["snapshot"]
    if "volume" in source:
        request.volume_content_source.volume.volume_id = source["volume"]
    return driver.controller.CreateVolume(request).volume


def used(driver: Driver, volume: csi.Volume, use: csi.VolumeCapability | None = None) -> Path:
    driver.stage(volume, use=use)
    return driver.publish(volume, use=use)


def given_back(driver: Driver, volume: csi.Volume) -> None:
    driver.unpublish(volume)
    driver.unstage(volume)


def usage(driver: Driver, volume: csi.Volume) -> csi.VolumeUsage:
    request = csi.NodeGetVolumeStatsRequest(volume_id=volume.volume_id, volume_path=str(driver.target(volume)))
    answer = driver.rpc.NodeGetVolumeStats(request)
    assert not answer.volume_condition.abnormal, answer.volume_condition.message
    return next(each for each in answer.usage if each.unit == csi.VolumeUsage.BYTES)


def available(driver: Driver) -> int:
    return driver.controller.GetCapacity(csi.GetCapacityRequest()).available_capacity


def snapshot(driver: Driver, volume: csi.Volume, name: str = "snapshot") -> str:
    request = csi.CreateSnapshotRequest(name=name, source_volume_id=volume.volume_id)
    return driver.controller.CreateSnapshot(request).snapshot.snapshot_id


def drop_snapshot(driver: Driver, name: str) -> None:
    driver.controller.DeleteSnapshot(csi.DeleteSnapshotRequest(snapshot_id=name))


def expand(driver: Driver, volume: csi.Volume, size: int, limit: int = 0) -> int:
    request = csi.ControllerExpandVolumeRequest(volume_id=volume.volume_id)
    request.capacity_range.required_bytes = size
    request.capacity_range.limit_bytes = limit
    return driver.controller.ControllerExpandVolume(request).capacity_bytes


def nothing_left(place: Path) -> None:
    assert lvm.thin_volumes(place) == {}
    assert [
        path for name in ("volumes", "snapshots", "new", "trash") for path in (place / "pool" / name).iterdir()
    ] == []
    assert mountinfo.below(mountinfo.read(), place / "pool") == ()


def test_a_volume_ends_at_its_size_and_grows_in_use(driver: Driver, place: Path) -> None:
    volume, other = create(driver), create(driver, "other")
    assert lvm.thin_volumes(place) == {volume.volume_id: SIZE, other.volume_id: SIZE}
    target, neighbour = used(driver, volume), used(driver, other)
    assert 20 * MiB <= fill(target / "file", 2 * SIZE) < SIZE
    assert fill(neighbour / "file", 8 * MiB) == 8 * MiB, "a full volume leaves its neighbours alone"
    seen = usage(driver, volume)
    assert (seen.total, seen.used + seen.available) == (volume.capacity_bytes, SIZE)
    assert seen.available < 2 * MiB
    assert expand(driver, volume, 2 * SIZE) == usage(driver, volume).total == 2 * SIZE
    assert fill(target / "more", 16 * MiB) == 16 * MiB or not lvm.can_grow()
    inside = os.statvfs(target)
    assert SIZE < inside.f_blocks * inside.f_frsize <= 2 * SIZE, "df in the pod shows it"
    for each in (volume, other):
        given_back(driver, each)
        driver.delete(each.volume_id)
    nothing_left(place)


def test_sizes_are_whole_extents_within_what_was_asked_for(driver: Driver, place: Path) -> None:
    assert create(driver, "odd", SIZE + 1).capacity_bytes == SIZE + 4 * MiB
    assert create(driver, "odd", SIZE + 1).capacity_bytes == SIZE + 4 * MiB
    assert driver.create("usual").capacity_bytes == 1 << 30, (
        "a file system has a size, whether a claim names one or not"
    )
    with refused(Code.OUT_OF_RANGE, naming="extents"):
        driver.create("exact", required=SIZE + 1, limit=SIZE + 1)
    volume = create(driver)
    with refused(Code.OUT_OF_RANGE, naming="extents"):
        expand(driver, volume, SIZE + 1, SIZE + 1)
    assert lvm.thin_volumes(place)[volume.volume_id] == SIZE
    with refused(Code.RESOURCE_EXHAUSTED):
        create(driver, "huge", 1 << 40)
    with refused(Code.OUT_OF_RANGE):
        expand(driver, volume, 1 << 40)


def test_a_snapshot_of_a_volume_that_is_written_to_is_of_one_moment_and_takes_no_space(
    driver: Driver, place: Path
) -> None:
    volume = create(driver)
    target = used(driver, volume)
    fill(target / "large", 8 * MiB)
    with counting(target):
        taken = [snapshot(driver, volume, f"snapshot{number}") for number in range(3)]
    given_back(driver, volume)
    driver.delete(volume.volume_id)
    for number, each in enumerate(taken):
        clone = create(driver, f"clone{number}", 2 * SIZE, snapshot=each)
        shown = used(driver, clone)
        assert is_of_one_moment(shown)
        assert (shown / "large").stat().st_size == 8 * MiB
        whole = fill(shown / "more", 30 * MiB) == 30 * MiB
        assert whole or not lvm.can_grow(), "a clone may be larger than what it is made from"
        given_back(driver, clone)
        driver.delete(clone.volume_id)
        drop_snapshot(driver, each)
    nothing_left(place)


def test_a_clone_is_a_volume_of_its_own_that_nobody_uses(driver: Driver, place: Path) -> None:
    volume = create(driver)
    target = used(driver, volume)
    (target / "file").write_text("1")
    clone = create(driver, "clone", volume=volume.volume_id)
    (used(driver, clone) / "file").write_text("2")
    assert (target / "file").read_text() == "1"
    for each in (clone, volume):
        given_back(driver, each)
        driver.delete(each.volume_id)
    nothing_left(place)


def test_snapshots_taken_together_are_deleted_together(driver: Driver, place: Path) -> None:
    from ubproto.csi.v1 import csi_pb2_grpc

    volumes = [create(driver, f"pvc{number}") for number in range(2)]
    groups = csi_pb2_grpc.GroupControllerStub(driver.channel)
    ids = [each.volume_id for each in volumes]
    made = groups.CreateVolumeGroupSnapshot(csi.CreateVolumeGroupSnapshotRequest(name="g", source_volume_ids=ids))
    members = [each.snapshot_id for each in made.group_snapshot.snapshots]
    assert set(lvm.thin_volumes(place)) == {*ids, *members}
    clone = create(driver, "clone", snapshot=members[0])
    request = csi.DeleteVolumeGroupSnapshotRequest(group_snapshot_id=made.group_snapshot.group_snapshot_id)
    groups.DeleteVolumeGroupSnapshot(request)
    for each in (*volumes, clone):
        driver.delete(each.volume_id)
    nothing_left(place)


def test_a_device_has_room_for_all_of_its_size_and_grows(driver: Driver, place: Path) -> None:
    block = capability(RWX, block=True)
    volume = create(driver, use=block)
    device = used(driver, volume, block)

    def write(offset: int) -> None:
        with device.open("r+b", buffering=0) as out:
            for start in range(offset, offset + SIZE, MiB):
                os.pwrite(out.fileno(), os.urandom(MiB), start)
            os.fsync(out.fileno())

    write(0)
    expand(driver, volume, 4 * SIZE)
    request = csi.NodeExpandVolumeRequest(volume_id=volume.volume_id, volume_path=str(device))
    assert driver.rpc.NodeExpandVolume(request).capacity_bytes == 4 * SIZE
    if lvm.can_grow():
        write(3 * SIZE)
    given_back(driver, volume)
    driver.delete(volume.volume_id)
    nothing_left(place)


def test_after_a_reboot_volumes_are_brought_when_somebody_asks_for_them(
    driver: Driver, place: Path, start: StartDriver
) -> None:
    volume, kept = create(driver), create(driver, "kept")
    (used(driver, volume) / "file").write_text("stays")
    taken = snapshot(driver, volume)
    driver.kill()
    unmount(place)
    lvm.reboot(place)
    for path in (driver.root / "run").rglob("*.json"):
        path.unlink()
    driver.restart()
    done = ubnode(driver, "volumes", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"well"') == 2
    assert (used(driver, volume) / "file").read_text() == "stays"
    clone = create(driver, "clone", snapshot=taken)
    assert (used(driver, clone) / "file").read_text() == "stays"
    assert usage(driver, volume).total == SIZE
    for each in (volume, clone):
        given_back(driver, each)
    drop_snapshot(driver, taken)
    for each in (volume, clone, kept):
        driver.delete(each.volume_id)
    nothing_left(place)


def test_a_thin_volume_that_is_lost_is_named_and_no_other_volume_suffers(driver: Driver, place: Path) -> None:
    volume, other = create(driver), create(driver, "other")
    driver.kill()
    unmount(place)
    assert lvm.run(place, "lvremove", "-y", f"vg0/{volume.volume_id}").returncode == 0
    driver.restart()
    with refused(Code.NOT_FOUND, naming=f"vg0/{volume.volume_id}"):
        driver.stage(volume)
    conditions = {
        each.volume.volume_id: each.status.volume_condition.abnormal
        for each in driver.controller.ListVolumes(csi.ListVolumesRequest()).entries
    }
    assert conditions == {volume.volume_id: True, other.volume_id: False}
    (used(driver, other) / "file").write_text("well")
    below = place / "pool/volumes" / volume.volume_id / "share"
    assert list(below.iterdir()) == [], "nothing is written where the volume is not"


def test_a_volume_that_was_answered_is_there_after_a_power_cut(driver: Driver, place: Path) -> None:
    volume = create(driver)
    cut, again = place / "after the cut", place / "again"
    subprocess.run(["cp", "--sparse=always", place / f"lvm/{volume.volume_id}.img", cut], check=True)
    again.mkdir()
    subprocess.run(["mount", "-o", "loop", cut, again], check=True)
    assert {path.name for path in again.iterdir()} >= {"data", "nodes"}


def test_a_program_that_a_killed_driver_left_at_work_is_waited_for(driver: Driver, place: Path) -> None:
    create = place / "lvm-bin/lvcreate"
    create.rename(place / "lvm-bin/slow")
    create.write_text(f'#!/bin/sh\ntouch {place}/began\nsleep 3\nexec {place}/lvm-bin/slow "$@"\n')
    create.chmod(0o755)
    create.with_name("slow").write_text(create.with_name("slow").read_text().replace("slow", "lvcreate"))
    request = csi.CreateVolumeRequest(name="pvc", volume_capabilities=[capability()])
    driver.controller.CreateVolume.future(request)
    while not (place / "began").exists():
        time.sleep(0.01)
    driver.kill()
    driver.restart()
    nothing_left(place)


def test_the_same_call_many_times_at_once_makes_one_thin_volume(driver: Driver, place: Path) -> None:
    def call(_: int) -> str:
        try:
            return create(driver).volume_id
        except grpc.RpcError as error:
            if error.code() is not Code.ABORTED:
                raise
            return ""

    with ThreadPoolExecutor(16) as pool:
        (name,) = set(pool.map(call, range(16))) - {""}
    assert set(lvm.thin_volumes(place)) == {name}
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: driver.controller.ListVolumes(csi.ListVolumesRequest()), range(16)))
    assert len(mountinfo.below(mountinfo.read(), place / "pool")) == 1


def test_a_share_that_is_held_open_is_removed_by_the_next_driver(driver: Driver, place: Path) -> None:
    volume = create(driver)
    held = os.open(place / "pool/volumes" / volume.volume_id / "share", os.O_RDONLY)
    try:
        with refused(Code.INTERNAL, naming="still open"):
            driver.delete(volume.volume_id)
        driver.delete(volume.volume_id)
        assert driver.controller.ListVolumes(csi.ListVolumesRequest()).entries == []
    finally:
        os.close(held)
    driver.stop()
    driver.restart()
    nothing_left(place)


def test_capacity_falls_with_what_is_written_and_is_none_before_the_metadata_is_full(
    driver: Driver, place: Path
) -> None:
    before = available(driver)
    volume = create(driver)
    assert fill(used(driver, volume) / "file", 20 * MiB) == 20 * MiB
    assert before - 40 * MiB < available(driver) <= before - 20 * MiB
    lvm.set_metadata(place, "96.10")
    assert available(driver) == 0
    with refused(Code.RESOURCE_EXHAUSTED):
        create(driver, "more")
    lvm.set_metadata(place, "96,10")  # as a locale may write it
    assert available(driver) == 0


def test_space_in_a_pods_manifest_is_a_thin_volume_too(driver: Driver, place: Path) -> None:
    target = driver.kubelet / "pods/pod1/volumes/scratch/mount"
    target.parent.mkdir(parents=True)
    handle = "csi-" + "0" * 64
    context = {"csi.storage.k8s.io/ephemeral": "true", "size": "20M"}
    driver.rpc.NodePublishVolume(
        csi.NodePublishVolumeRequest(
            volume_id=handle, target_path=str(target), volume_capability=capability(RWO), volume_context=context
        )
    )
    assert 10 * MiB < fill(target / "file", SIZE) < 20 * MiB
    driver.rpc.NodeUnpublishVolume(csi.NodeUnpublishVolumeRequest(volume_id=handle, target_path=str(target)))
    nothing_left(place)


@pytest.mark.parametrize("lacking", ["lvs", "lvextend"])
def test_a_program_that_is_missing_is_named_at_the_start(
    place: Path, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "lvm-bin" / lacking).unlink()
    with pytest.raises(Unsupported, match=lacking):
        LvmSpace(Thin("vg0", "thin")).check(place)


@pytest.mark.parametrize(("thin", "why"), [(Thin("vg0", "plain"), "no thin pool"), (Thin("vg1", "thin"), "vg1")])
def test_what_is_no_thin_pool_is_no_pool_of_type_lvm(place: Path, thin: Thin, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        LvmSpace(thin).check(place)


@pytest.mark.parametrize(
    "said", ["", "no JSON", "[]", '{"report": [{}]}', '{"report": [{"lv": [3]}]}', '{"report": []}']
)
def test_what_lvs_says_that_is_no_report_is_a_fault_and_no_volume_is_taken_for_lost(place: Path, said: str) -> None:
    (place / "lvm-bin/lvs").write_text(f"#!/bin/sh\nprintf '%s' '{said}'\n")
    with pytest.raises(HostFault):
        Thin("vg0", "thin").find("ub-1")

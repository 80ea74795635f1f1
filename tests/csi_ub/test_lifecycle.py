"""The way of a volume over the socket of the driver: create, stage, publish, and back."""

import errno
import os
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from tests.csi_ub.driver import RWO, RWOP, Driver, Mode, StartDriver, capability, refused
from ubhost.kernel import mountinfo

pytestmark = pytest.mark.kernel
Code = grpc.StatusCode


def mounts_at(path: Path) -> tuple[mountinfo.Mount, ...]:
    return mountinfo.at(mountinfo.read(), path)


def test_a_pod_writes_into_the_volume_and_finds_it_again_later(driver: Driver) -> None:
    volume = driver.create()
    driver.stage(volume)
    (driver.publish(volume) / "file").write_text("kept")
    driver.unpublish(volume)
    driver.unstage(volume)
    driver.stage(volume)
    assert (driver.publish(volume, "pod2") / "file").read_text() == "kept"


def test_a_second_node_sees_what_the_first_one_writes(start: StartDriver) -> None:
    first, second = start("node0"), start("node1")
    volume = first.create()
    first.stage(volume)
    second.stage(volume)
    here, there = first.publish(volume), second.publish(volume)
    (here / "file").write_text("from node0")
    assert (there / "file").read_text() == "from node0"
    (there / "file").write_text("from node1")
    assert (here / "file").read_text() == "from node1"


def test_the_tenth_identical_call_changes_nothing(driver: Driver) -> None:
    volume = driver.create()
    for _ in range(10):
        driver.stage(volume)
    for _ in range(10):
        driver.publish(volume)
    assert len(mounts_at(driver.staging(volume))) == 1
    assert len(mounts_at(driver.target(volume))) == 1
    assert driver.create() == volume


def test_unpublish_removes_the_target_and_only_that(driver: Driver) -> None:
    volume = driver.create()
    driver.stage(volume)
    target = driver.publish(volume)
    (target / "file").write_text("kept")
    driver.unpublish(volume)
    assert not target.exists()
    assert target.parent.exists()
    assert (driver.staging(volume) / "file").read_text() == "kept"


def test_unpublish_of_what_is_not_there_is_done_already(driver: Driver) -> None:
    volume = driver.create()
    driver.unpublish(volume)
    target = driver.target(volume)
    target.mkdir(parents=True)
    driver.unpublish(volume)
    assert not target.exists()
    driver.unstage(volume)
    driver.delete(volume.volume_id)
    driver.unpublish(volume)
    driver.unstage(volume)


def test_unpublish_never_deletes_files_that_lie_in_an_unmounted_target(driver: Driver) -> None:
    volume = driver.create()
    target = driver.target(volume)
    target.mkdir(parents=True)
    (target / "file").write_text("somebody's")
    with refused(Code.FAILED_PRECONDITION, naming=str(target)):
        driver.unpublish(volume)
    assert (target / "file").read_text() == "somebody's"


@pytest.mark.parametrize("how", ["readonly", "mode", "flag"])
def test_a_read_only_volume_cannot_be_written_and_others_still_can(driver: Driver, how: str) -> None:
    volume = driver.create()
    driver.stage(volume)
    target = driver.publish(
        volume,
        "reader",
        Mode.MULTI_NODE_READER_ONLY if how == "mode" else Mode.MULTI_NODE_MULTI_WRITER,
        readonly=how == "readonly",
        flags=("ro",) if how == "flag" else (),
    )
    assert "ro" in mounts_at(target)[0].options
    with pytest.raises(OSError, match="Read-only") as caught:
        (target / "file").write_text("no")
    assert caught.value.errno == errno.EROFS
    (driver.publish(volume, "writer") / "file").write_text("yes")
    assert (target / "file").read_text() == "yes"


def test_the_same_target_with_other_arguments_is_refused_and_stays(driver: Driver) -> None:
    volume = driver.create()
    driver.stage(volume)
    before = mounts_at(driver.publish(volume))
    with refused(Code.ALREADY_EXISTS, naming=str(driver.target(volume))):
        driver.publish(volume, readonly=True)
    with refused(Code.ALREADY_EXISTS):
        driver.publish(volume, mode=RWO)
    with refused(Code.ALREADY_EXISTS):
        driver.stage(volume, RWO)
    assert mounts_at(driver.target(volume)) == before


def test_another_volume_is_not_mounted_over_a_target_in_use(driver: Driver) -> None:
    volume, other = driver.create("one"), driver.create("two")
    driver.stage(volume)
    driver.stage(other)
    target = driver.publish(volume)
    with refused(Code.ALREADY_EXISTS):
        driver.publish(other, target=target)
    with refused(Code.FAILED_PRECONDITION, naming=str(target)):
        driver.unpublish(other, target=target)
    assert len(mounts_at(target)) == 1


@pytest.mark.parametrize("mode", [RWOP, Mode.SINGLE_NODE_WRITER, Mode.SINGLE_NODE_READER_ONLY])
def test_a_single_writer_gets_one_target_only(driver: Driver, mode: int) -> None:
    volume = driver.create(mode=mode)
    driver.stage(volume, mode)
    driver.publish(volume, "pod1", mode)
    with refused(Code.FAILED_PRECONDITION, naming="pod1"):
        driver.publish(volume, "pod2", mode)
    driver.unpublish(volume, "pod1")
    driver.publish(volume, "pod2", mode)


def test_many_pods_of_one_node_share_a_single_node_volume_but_no_second_node(start: StartDriver) -> None:
    first, second = start("node0"), start("node1")
    volume = first.create(mode=RWO)
    first.stage(volume, RWO)
    first.publish(volume, "pod1", RWO)
    first.publish(volume, "pod2", RWO)
    with refused(Code.FAILED_PRECONDITION, naming="node0"):
        second.stage(volume, RWO)
    first.unpublish(volume, "pod1")
    first.unpublish(volume, "pod2")
    first.unstage(volume)
    second.stage(volume, RWO)


def test_publish_without_a_staged_volume_never_binds_the_empty_folder(driver: Driver) -> None:
    volume = driver.create()
    staging = driver.staging(volume)
    staging.mkdir(parents=True)
    with refused(Code.FAILED_PRECONDITION):
        driver.publish(volume)
    driver.stage(volume)
    mounts_before = mounts_at(staging)
    assert len(mounts_before) == 1
    os.system(f"umount {staging}")  # what a reboot, or a careless admin, does
    with refused(Code.FAILED_PRECONDITION, naming=str(staging)):
        driver.publish(volume)
    driver.stage(volume)
    driver.publish(volume)


def test_a_staging_path_missing_from_the_request_is_a_wrong_order(driver: Driver) -> None:
    volume = driver.create()
    request = csi.NodePublishVolumeRequest(
        volume_id=volume.volume_id, target_path=str(driver.target(volume)), volume_capability=capability()
    )
    with refused(Code.FAILED_PRECONDITION, naming="staging_target_path"):
        driver.rpc.NodePublishVolume(request)


def test_unstage_of_a_volume_in_use_is_refused_and_harms_nobody(driver: Driver) -> None:
    volume = driver.create()
    driver.stage(volume)
    target = driver.publish(volume)
    with refused(Code.FAILED_PRECONDITION, naming=str(target)):
        driver.unstage(volume)
    driver.unpublish(volume)
    with (driver.staging(volume) / "file").open("w"), refused(Code.FAILED_PRECONDITION, naming="globalmount"):
        driver.unstage(volume)
    driver.unstage(volume)
    assert driver.staging(volume).is_dir()


def test_a_volume_in_use_cannot_be_deleted(driver: Driver) -> None:
    volume = driver.create()
    driver.stage(volume)
    (driver.publish(volume) / "file").write_text("kept")
    with refused(Code.FAILED_PRECONDITION, naming="node0"):
        driver.delete(volume.volume_id)
    assert (driver.target(volume) / "file").read_text() == "kept"
    driver.unpublish(volume)
    driver.unstage(volume)
    driver.delete(volume.volume_id)
    driver.delete(volume.volume_id)
    assert list((driver.pool / "volumes").iterdir()) == []
    assert list((driver.pool / "trash").iterdir()) == []
    assert list((driver.pool / "names").iterdir()) == []


def test_long_target_paths_work(driver: Driver) -> None:
    volume = driver.create()
    driver.stage(volume)
    target = driver.kubelet / "/".join(["x" * 200] * 5) / "mount"
    driver.publish(volume, target=target)
    assert len(mounts_at(target)) == 1
    driver.unpublish(volume, target=target)
    assert not target.exists()


def test_mounts_survive_the_driver_and_its_successor_knows_them(driver: Driver) -> None:
    volume = driver.create()
    driver.stage(volume)
    target = driver.publish(volume)
    with (target / "open").open("w") as held:
        driver.kill()
        driver.restart()
        held.write("still here")
    driver.stage(volume)
    driver.publish(volume)
    assert len(mounts_at(target)) == 1
    with refused(Code.ALREADY_EXISTS):
        driver.publish(volume, readonly=True)
    driver.unpublish(volume)
    driver.unstage(volume)
    assert mounts_at(driver.staging(volume)) == ()
    driver.delete(volume.volume_id)


def test_volumes_give_no_device_nodes_and_no_set_user_id(driver: Driver) -> None:
    volume = driver.create()
    driver.stage(volume)
    assert {"nosuid", "nodev"} <= mounts_at(driver.publish(volume))[0].options


def test_mount_flags_become_options_of_this_mount_alone(driver: Driver) -> None:
    volume = driver.create()
    driver.stage(volume)
    assert {"noexec", "noatime"} <= mounts_at(driver.publish(volume, flags=("noexec", "noatime")))[0].options
    assert "noexec" not in mounts_at(driver.publish(volume, "pod2"))[0].options

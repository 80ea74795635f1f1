"""Volumes that a pod brings in its manifest: space with a bound, gone with the pod."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from tests.csi_ub.driver import RWO, Driver, StartDriver, capability, refused
from tests.csi_ub.pools import make_btrfs, unmount_below
from ubhost.kernel import mountinfo

pytestmark = pytest.mark.kernel
Code = grpc.StatusCode
HANDLE = "csi-" + "ab" * 32
MiB = 1 << 20


@pytest.fixture
def btrfs(tmp_path: Path, start: StartDriver) -> Iterator[Driver]:
    (tmp_path / "pool").mkdir()
    make_btrfs(tmp_path / "image", tmp_path / "pool")
    pools = [{"name": "fast", "type": "btrfs", "path": str(tmp_path / "pool")}]
    yield start(config={"pools": pools, "inline_limit_bytes": 100 * MiB})
    unmount_below(tmp_path)


def target_of(driver: Driver, handle: str = HANDLE) -> Path:
    return driver.kubelet / "pods/pod1/volumes/kubernetes.io~csi" / handle[:12] / "mount"


def publish(driver: Driver, handle: str = HANDLE, **attributes: str) -> Path:
    """Ask for an inline volume as kubelet does: no staging path, the attributes of the manifest and its own."""
    target = target_of(driver, handle)
    target.parent.mkdir(parents=True, exist_ok=True)
    context = {**attributes, "csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "pod1"}
    driver.rpc.NodePublishVolume(
        csi.NodePublishVolumeRequest(
            volume_id=handle, target_path=str(target), volume_capability=capability(RWO), volume_context=context
        )
    )
    return target


def unpublish(driver: Driver, handle: str = HANDLE) -> None:
    request = csi.NodeUnpublishVolumeRequest(volume_id=handle, target_path=str(target_of(driver, handle)))
    driver.rpc.NodeUnpublishVolume(request)


def left(pool: Path, driver: Driver) -> list[object]:
    """Return what is left of volumes in a pool and in the mount table."""
    found = [*(pool / "volumes").iterdir(), *(pool / "trash").iterdir(), *(pool / "names").iterdir()]
    return [*found, *(mount.target for mount in mountinfo.below(mountinfo.read(), driver.kubelet))]


def test_a_pod_gets_space_of_its_own_that_goes_with_it_even_after_a_restart(driver: Driver) -> None:
    target = publish(driver)
    assert publish(driver) == target
    assert len(mountinfo.at(mountinfo.read(), target)) == 1
    (target / "file").write_text("scratch")
    other = publish(driver, "csi-other")
    assert not (other / "file").exists()
    request = csi.NodeGetVolumeStatsRequest(volume_id=HANDLE, volume_path=str(target))
    assert not driver.rpc.NodeGetVolumeStats(request).volume_condition.abnormal
    assert not driver.controller.ListVolumes(csi.ListVolumesRequest()).entries, "the cluster knows nothing of them"
    driver.kill()
    driver.restart()
    assert (target / "file").read_text() == "scratch"
    unpublish(driver)
    unpublish(driver)
    assert not target.exists()
    unpublish(driver, "csi-other")
    assert left(driver.pool, driver) == []
    assert list((driver.root / "run/ub-node/volumes/inline").glob("ub-*")) == []


def test_it_can_be_removed_after_a_reboot(driver: Driver) -> None:
    publish(driver)
    driver.kill()
    unmount_below(driver.root)
    for record in (driver.root / "run/ub-node/volumes").rglob("*.json"):
        record.unlink()
    driver.restart()
    unpublish(driver)
    assert left(driver.pool, driver) == []


def test_its_size_holds_and_is_bounded(btrfs: Driver, tmp_path: Path) -> None:
    target = publish(btrfs, size="8Mi")
    with pytest.raises(OSError, match=r"quota|space"):
        (target / "file").write_bytes(b"x" * (100 * MiB))
    with refused(Code.OUT_OF_RANGE, naming="inline_limit_bytes"):
        publish(btrfs, "csi-large", size="101Mi")
    request = csi.NodeGetVolumeStatsRequest(volume_id="csi-default", volume_path=str(publish(btrfs, "csi-default")))
    assert btrfs.rpc.NodeGetVolumeStats(request).usage[0].total == 100 * MiB
    unpublish(btrfs)
    unpublish(btrfs, "csi-default")
    assert left(tmp_path / "pool", btrfs) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [("path", "/etc"), ("pool", "default"), ("engine", "bind"), ("owner", "node1"), ("size", "-1"), ("size", "0"),
     ("size", "all"), ("type", "block"), ("mountOptions", "suid")],
)  # fmt: skip
def test_a_pods_author_may_give_nothing_but_a_size(driver: Driver, key: str, value: str) -> None:
    with refused(Code.INVALID_ARGUMENT, naming=key):
        publish(driver, **{key: value})
    assert not target_of(driver).exists()
    assert left(driver.pool, driver) == []


def test_nothing_is_left_of_one_that_cannot_be_shown(driver: Driver) -> None:
    target = target_of(driver)
    target.parent.mkdir(parents=True)
    target.write_text("in the way")
    with refused(Code.ALREADY_EXISTS, naming="not a folder"):
        publish(driver)
    assert left(driver.pool, driver) == []
    assert target.read_text() == "in the way"

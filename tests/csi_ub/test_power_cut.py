"""What is left when the power goes just after an answer: a copy of the disk, taken at that moment, tells."""

import shutil
import subprocess
from pathlib import Path

import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from tests.csi_ub.driver import StartDriver, capability

pytestmark = pytest.mark.kernel
CONTENT = bytes(range(256)) * 4096


@pytest.mark.parametrize("source", ["snapshot", "volume"])
def test_a_copy_that_was_answered_is_there_after_a_power_cut(start: StartDriver, tmp_path: Path, source: str) -> None:
    if not shutil.which("mkfs.ext4"):
        pytest.skip("e2fsprogs is not installed")
    disk, cut = tmp_path / "disk", tmp_path / "after the cut"
    for folder in (tmp_path / "pool", tmp_path / "again"):
        folder.mkdir()
    subprocess.run(["truncate", "-s", "64M", str(disk)], check=True)
    subprocess.run(["mkfs.ext4", "-q", str(disk)], check=True)
    subprocess.run(["mount", "-o", "loop", str(disk), str(tmp_path / "pool")], check=True)
    driver = start(config={"pools": [{"name": "plain", "type": "dir", "path": str(tmp_path / "pool")}]})
    volume = driver.create("origin")
    driver.stage(volume)
    (driver.publish(volume) / "file").write_bytes(CONTENT)
    driver.unpublish(volume)
    driver.unstage(volume)
    request = csi.CreateVolumeRequest(name="copy", volume_capabilities=[capability()])
    if source == "snapshot":
        taken = csi.CreateSnapshotRequest(name="snapshot", source_volume_id=volume.volume_id)
        request.volume_content_source.snapshot.snapshot_id = driver.controller.CreateSnapshot(
            taken
        ).snapshot.snapshot_id
    else:
        request.volume_content_source.volume.volume_id = volume.volume_id
    copy = driver.controller.CreateVolume(request).volume
    shutil.copyfile(disk, cut)  # what the disk has now, and no cache
    subprocess.run(["mount", "-o", "loop", str(cut), str(tmp_path / "again")], check=True)
    share = tmp_path / "again/volumes" / copy.volume_id / "share"
    assert (share.parent / "volume.json").exists(), "the record was written, so the volume exists"
    assert (share / "data/file").read_bytes() == CONTENT

"""Pools that need the kernel of a distribution: XFS with project quotas, which the machine of the CI does not have."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as pb
from ubproto.csi.v1 import csi_pb2_grpc as rpc

from e2e.inside import csi
from e2e.inside.files import MiB, fill


@pytest.fixture
def node(tmp_path: Path) -> Iterator[csi.Node]:
    """A node whose only pool is a fresh xfs of 512 MiB."""
    image, pool, config = tmp_path / "image", tmp_path / "pool", tmp_path / "csi.yaml"
    pool.mkdir()
    with image.open("wb") as file:
        file.truncate(512 * MiB)
    subprocess.run(["modprobe", "loop"], check=True)
    subprocess.run(["mkfs.xfs", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop,prjquota", image, pool], check=True)
    config.write_text(f"pools: [{{name: fast, type: xfs, path: {pool}}}]\n")
    try:
        with csi.node("node0", tmp_path, "--config", str(config)) as node:
            yield node
    finally:
        subprocess.run(["umount", "-l", pool], check=True)


def create(node: csi.Node, name: str, size: int, snapshot: str = "") -> pb.Volume:
    request = pb.CreateVolumeRequest(name=name, volume_capabilities=[csi.shared()])
    request.capacity_range.required_bytes = size
    if snapshot:
        request.volume_content_source.snapshot.snapshot_id = snapshot
    return rpc.ControllerStub(node.channel).CreateVolume(request, timeout=csi.CALL_S).volume


def usage(node: csi.Node, volume: pb.Volume, path: Path) -> pb.VolumeUsage:
    request = pb.NodeGetVolumeStatsRequest(volume_id=volume.volume_id, volume_path=str(path))
    answer = rpc.NodeStub(node.channel).NodeGetVolumeStats(request, timeout=csi.CALL_S)
    assert not answer.volume_condition.abnormal, answer.volume_condition.message
    return next(each for each in answer.usage if each.unit == pb.VolumeUsage.BYTES)


def test_a_volume_on_xfs_ends_at_its_size_and_grows_in_use(node: csi.Node) -> None:
    volume, other = create(node, "small", 20 * MiB), create(node, "other", 20 * MiB)
    assert volume.capacity_bytes == 20 * MiB
    target, neighbour = node.publish(volume, "0a1b"), node.publish(other, "0a1c")
    assert 18 * MiB <= fill(target / "file", 40 * MiB) <= 20 * MiB
    assert fill(neighbour / "file", 4 * MiB) == 4 * MiB, "a full volume leaves its neighbours alone"
    seen = usage(node, volume, target)
    assert seen.total == 20 * MiB
    assert seen.used + seen.available == seen.total
    assert seen.available < 2 * MiB
    inside = os.statvfs(target)
    assert inside.f_blocks * inside.f_frsize <= 21 * MiB, "df in a pod shows the quota"
    request = pb.ControllerExpandVolumeRequest(volume_id=volume.volume_id)
    request.capacity_range.required_bytes = 40 * MiB
    grown = rpc.ControllerStub(node.channel).ControllerExpandVolume(request, timeout=csi.CALL_S)
    assert grown.capacity_bytes == usage(node, volume, target).total == 40 * MiB
    assert fill(target / "more", 10 * MiB) == 10 * MiB
    for each, pod in ((volume, "0a1b"), (other, "0a1c")):
        node.unpublish(each, pod)
        node.delete(each)


def test_a_copy_on_xfs_shares_its_blocks_and_has_a_quota_of_its_own(node: csi.Node) -> None:
    controller = rpc.ControllerStub(node.channel)
    volume = create(node, "source", 200 * MiB)
    target = node.publish(volume, "0a1b")
    assert fill(target / "file", 150 * MiB) == 150 * MiB
    request = pb.CreateSnapshotRequest(name="snapshot", source_volume_id=volume.volume_id)
    with pytest.raises(grpc.RpcError) as caught:
        controller.CreateSnapshot(request, timeout=csi.CALL_S)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION, "somebody writes to it"
    content = (target / "file").read_bytes()
    node.unpublish(volume, "0a1b")
    before = controller.GetCapacity(pb.GetCapacityRequest(), timeout=csi.CALL_S).available_capacity
    snapshot = controller.CreateSnapshot(request, timeout=csi.CALL_S).snapshot
    clone = create(node, "clone", 200 * MiB, snapshot.snapshot_id)
    after = controller.GetCapacity(pb.GetCapacityRequest(), timeout=csi.CALL_S).available_capacity
    assert before - after < 20 * MiB, "three times 150 MiB would not fit"
    target = node.publish(clone, "0a1b")
    assert (target / "file").read_bytes() == content
    assert fill(target / "more", 100 * MiB) < 60 * MiB
    node.unpublish(clone, "0a1b")
    node.delete(clone)
    controller.DeleteSnapshot(pb.DeleteSnapshotRequest(snapshot_id=snapshot.snapshot_id), timeout=csi.CALL_S)
    node.delete(volume)
    assert controller.GetCapacity(pb.GetCapacityRequest(), timeout=csi.CALL_S).available_capacity > before

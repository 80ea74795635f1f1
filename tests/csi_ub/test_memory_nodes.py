"""Drivers of two nodes that share a DAX device, spoken to as a cluster does."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from csi_ub.model import Consistency
from tests.csi_ub import dax
from tests.csi_ub.dax import manifest
from tests.csi_ub.driver import Driver, capability, refused
from tests.csi_ub.pools import unmount_below

Code = grpc.StatusCode
MiB = 1 << 20
STRONG, EVENTUAL = Consistency.STRONG, Consistency.EVENTUAL


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Driver]]:
    names = ("node0", "node1")
    memory = dax.memory(tmp_path / "memory", 4 * MiB)
    config: dict[str, object] = {
        "peers": [{"node": name, "address": f"127.0.0.{at}"} for at, name in enumerate(names, 1)],
        "peer_port": 24201,
        "dax": [
            {"name": "cxl-a", "owner": "node0", "coherent": True, "devices": {"node0": "dax0.0", "node1": "dax1.0"}}
        ],
    }
    for number, name in enumerate(names):
        dax.device(tmp_path / name, f"dax{number}.0", memory)
    drivers = [Driver.start(tmp_path, name, config=config) for name in names]
    yield drivers
    for driver in drivers:
        driver.stop()
        unmount_below(driver.kubelet)


@pytest.mark.kernel
def test_nodes_share_a_device_and_give_it_back_in_order(nodes: list[Driver], tmp_path: Path) -> None:
    parameters = {"type": "memory"}
    capacity = csi.GetCapacityRequest(parameters=parameters)
    assert [node.controller.GetCapacity(capacity).maximum_volume_size.value for node in nodes] == [4 * MiB, 0]
    with refused(Code.RESOURCE_EXHAUSTED, naming="node0"):
        nodes[1].create(parameters=parameters)
    volume = nodes[0].create("shared", MiB, parameters=parameters)
    assert volume.capacity_bytes == 4 * MiB
    assert [dict(each.segments) for each in volume.accessible_topology] == [
        {"topology.unifiedbus.com/node": node.node} for node in nodes
    ]
    assert nodes[0].create("shared", MiB, parameters=parameters) == volume
    with refused(Code.OUT_OF_RANGE, naming="cxl-a"):
        nodes[0].create("larger", 8 * MiB, parameters=parameters)
    with refused(Code.RESOURCE_EXHAUSTED, naming=volume.volume_id):
        nodes[0].create("another", MiB, parameters=parameters)
    for node in nodes:
        node.stage(volume)
    pods = [node.publish(volume) for node in nodes]
    assert [each["path"] for pod in pods for each in manifest(pod)["devices"]] == ["dax0.0", "dax1.0"]  # type: ignore[attr-defined]
    with (pods[0] / "dax0.0").open("r+b", buffering=0) as here, mmap.mmap(here.fileno(), 4 * MiB) as mapped:
        assert not any(mapped[:])
        mapped[:5] = b"hello"
        assert (pods[1] / "dax1.0").read_bytes()[:5] == b"hello"
        with refused(Code.FAILED_PRECONDITION, naming="in use"):
            nodes[0].unpublish(volume)
    held = (tmp_path / "memory").open("rb")  # as a program does that was given the descriptor
    nodes[1].unpublish(volume)
    with refused(Code.FAILED_PRECONDITION, naming=str(os.getpid())):
        nodes[1].unstage(volume)
    held.close()
    nodes[1].unstage(volume)
    with refused(Code.FAILED_PRECONDITION, naming="node0"):
        nodes[0].delete(volume.volume_id)
    nodes[1].stage(volume)
    nodes[0].unpublish(volume)
    nodes[0].unstage(volume)
    with refused(Code.FAILED_PRECONDITION, naming="node1"):
        nodes[0].delete(volume.volume_id)
    nodes[1].kill()
    nodes[1].restart()
    nodes[1].unstage(volume)
    nodes[0].delete(volume.volume_id)
    assert not any(list((node.root / "run/ub-node/memory").iterdir()) for node in nodes)
    assert nodes[0].create("next", parameters=parameters).capacity_bytes == 4 * MiB
    assert dax.is_clean(tmp_path / "memory")


@pytest.mark.kernel
def test_what_a_shared_device_cannot_do_is_refused_and_said(nodes: list[Driver]) -> None:
    volume = nodes[0].create(parameters={"type": "memory", "engine": "dax"})
    for code, wrong in (
        (Code.INVALID_ARGUMENT, {"engine": "bind"}),
        (Code.INVALID_ARGUMENT, {"replicas": "3"}),
        (Code.FAILED_PRECONDITION, {"engine": "ub-shm"}),
    ):
        with refused(code, naming=next(iter(wrong.values())) if code is Code.INVALID_ARGUMENT else "UB memory"):
            nodes[0].create("other", parameters={"type": "memory", **wrong})
    with refused(Code.INVALID_ARGUMENT, naming="dax"):
        nodes[0].create("files", parameters={"engine": "dax"})
    with refused(Code.FAILED_PRECONDITION, naming="snapshots"):
        nodes[0].controller.CreateSnapshot(csi.CreateSnapshotRequest(name="s", source_volume_id=volume.volume_id))
    with refused(Code.FAILED_PRECONDITION, naming="grow"):
        sizes = csi.CapacityRange(required_bytes=1 << 30)
        nodes[0].controller.ControllerExpandVolume(
            csi.ControllerExpandVolumeRequest(volume_id=volume.volume_id, capacity_range=sizes)
        )
    clone = csi.CreateVolumeRequest(name="c", volume_capabilities=[capability()], parameters={"type": "memory"})
    clone.volume_content_source.volume.volume_id = nodes[0].create("files", parameters={"engine": "bind"}).volume_id
    with refused(Code.FAILED_PRECONDITION, naming="starts empty"):
        nodes[0].controller.CreateVolume(clone)

"""Who may use a volume at one time: access modes across nodes, and ControllerPublish with fencing."""

import os
import shutil
from contextlib import suppress

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from tests.csi_ub.cluster import cluster, wait
from tests.csi_ub.driver import RWO, RWX, Driver, Mode, StartDriver, capability, refused

Code = grpc.StatusCode
ONE_WRITER = Mode.MULTI_NODE_SINGLE_WRITER
needs_gluster = pytest.mark.skipif(not shutil.which("glusterfsd"), reason="glusterfs-server is not installed")


def attach(driver: Driver, volume: csi.Volume, node: str, mode: int = RWX, *, readonly: bool = False) -> dict[str, str]:
    request = csi.ControllerPublishVolumeRequest(
        volume_id=volume.volume_id, node_id=node, volume_capability=capability(mode), readonly=readonly
    )
    return dict(driver.controller.ControllerPublishVolume(request).publish_context)


def detach(driver: Driver, volume: csi.Volume, node: str = "") -> None:
    request = csi.ControllerUnpublishVolumeRequest(volume_id=volume.volume_id, node_id=node)
    driver.controller.ControllerUnpublishVolume(request)


def published(driver: Driver, volume: csi.Volume) -> list[str]:
    request = csi.ControllerGetVolumeRequest(volume_id=volume.volume_id)
    return list(driver.controller.ControllerGetVolume(request).status.published_node_ids)


def stage(driver: Driver, volume: csi.Volume, mode: int, context: dict[str, str]) -> None:
    staging = driver.staging(volume)
    with suppress(FileExistsError):  # what lies there may be dead
        staging.mkdir(parents=True)
    driver.rpc.NodeStageVolume(
        csi.NodeStageVolumeRequest(
            volume_id=volume.volume_id,
            staging_target_path=str(staging),
            volume_capability=capability(mode),
            volume_context=volume.volume_context,
            publish_context=context,
        )
    )


@pytest.mark.kernel
def test_of_many_nodes_one_writes_and_gives_that_up_with_its_last_pod(start: StartDriver) -> None:
    first, second = start("node0"), start("node1")
    volume = first.create(mode=ONE_WRITER)
    for node in (first, second):
        node.stage(volume, ONE_WRITER)
        node.publish(volume, "reader", ONE_WRITER, readonly=True)
    first.publish(volume, "writer", ONE_WRITER)
    first.publish(volume, "writer", ONE_WRITER)
    first.publish(volume, "another", ONE_WRITER)
    with refused(Code.FAILED_PRECONDITION, naming="node0"):
        second.publish(volume, "writer", ONE_WRITER)
    assert not second.target(volume, "writer").exists()
    first.unpublish(volume, "writer")
    with refused(Code.FAILED_PRECONDITION, naming="node0"):
        second.publish(volume, "writer", ONE_WRITER)
    first.kill()
    first.restart()
    first.stage(volume, ONE_WRITER)
    with refused(Code.FAILED_PRECONDITION, naming="node0"):
        second.publish(volume, "writer", ONE_WRITER)
    first.unpublish(volume, "another")
    (second.publish(volume, "writer", ONE_WRITER) / "file").write_text("second")
    assert (first.target(volume, "reader") / "file").read_text() == "second"
    with refused(Code.FAILED_PRECONDITION, naming="node1"):
        first.publish(volume, "writer", ONE_WRITER)


@pytest.mark.kernel
def test_a_volume_with_one_writer_is_not_shared_with_a_node_that_writes_as_it_likes(start: StartDriver) -> None:
    first, second = start("node0"), start("node1")
    volume = first.create(mode=ONE_WRITER)
    first.stage(volume, ONE_WRITER)
    second.stage(volume, RWX)
    with refused(Code.FAILED_PRECONDITION, naming="node1"):
        first.publish(volume, "writer", ONE_WRITER)


def test_attaching_is_not_offered_unless_it_is_configured(driver: Driver) -> None:
    volume = driver.create()
    with refused(Code.UNIMPLEMENTED):
        attach(driver, volume, "node0")
    with refused(Code.UNIMPLEMENTED):
        detach(driver, volume)


def test_the_cluster_says_which_nodes_may_use_a_volume(start: StartDriver) -> None:
    peers = [{"node": f"node{number}", "address": f"unix:///{number}"} for number in range(2)]
    driver = start(config={"fencing": True, "peers": peers})
    volume = driver.create(mode=RWO)
    offered = driver.controller.ControllerGetCapabilities(csi.ControllerGetCapabilitiesRequest()).capabilities
    assert csi.ControllerServiceCapability.RPC.PUBLISH_UNPUBLISH_VOLUME in [each.rpc.type for each in offered]
    with refused(Code.NOT_FOUND, naming="node7"):
        attach(driver, volume, "node7", RWO)
    with refused(Code.FAILED_PRECONDITION, naming="ControllerPublishVolume"):
        driver.stage(volume, RWO)
    context = attach(driver, volume, "node0", RWO)
    assert attach(driver, volume, "node0", RWO) == context
    with refused(Code.ALREADY_EXISTS, naming="node0"):
        attach(driver, volume, "node0", RWO, readonly=True)
    with refused(Code.FAILED_PRECONDITION, naming="node0"):
        attach(driver, volume, "node1", RWO)
    with refused(Code.FAILED_PRECONDITION, naming="node0"):
        driver.delete(volume.volume_id)
    assert published(driver, volume) == ["node0"]
    driver.kill()
    driver.restart()
    assert published(driver, volume) == ["node0"]
    detach(driver, volume)
    detach(driver, volume, "node0")
    attach(driver, volume, "node1", RWO)
    detach(driver, volume, "node1")
    driver.delete(volume.volume_id)
    detach(driver, volume, "node0")


@pytest.mark.kernel
def test_a_volume_is_not_taken_from_its_owner_while_that_uses_it(start: StartDriver) -> None:
    driver = start(config={"fencing": True})
    volume = driver.create(mode=RWO)
    stage(driver, volume, RWO, attach(driver, volume, "node0", RWO))
    with refused(Code.FAILED_PRECONDITION, naming="node0"):
        detach(driver, volume, "node0")
    driver.unstage(volume)
    detach(driver, volume, "node0")


@pytest.mark.kernel
@needs_gluster
@pytest.mark.parametrize("replicas", ["1", "3"])
def test_a_lost_node_is_shut_out_before_another_gets_its_volume(start: StartDriver, replicas: str) -> None:
    with cluster(start, fencing=True) as nodes:
        owner, lost, other = nodes
        volume = owner.create(mode=RWO, parameters={"replicas": replicas})
        stage(lost, volume, RWO, attach(other, volume, "node1", RWO))  # any controller hands it to the owner
        target = lost.publish(volume, mode=RWO)
        held = os.open(target / "file", os.O_RDWR | os.O_CREAT)
        os.write(held, b"before")
        lost.kill()
        with refused(Code.FAILED_PRECONDITION, naming="node1"):
            attach(owner, volume, "node2", RWO)
        detach(owner, volume, "node1")
        with pytest.raises(OSError, match=r"not connected|Input/output|Stale|bad state|Permission"):
            wait(lambda: os.pwrite(held, b"late", 0) == 0)  # until it fails
        stage(other, volume, RWO, attach(owner, volume, "node2", RWO))
        path = other.publish(volume, mode=RWO)
        assert (path / "file").read_text() == "before"
        (path / "file").write_text("after")
        with refused(Code.FAILED_PRECONDITION, naming="node2"):
            attach(owner, volume, "node1", RWO)
        other.unpublish(volume)
        other.unstage(volume)
        detach(owner, volume, "node2")
        with refused(Code.UNAVAILABLE, naming="node1"):
            attach(owner, volume, "node1", RWO)  # nobody there says that its old client is gone
        lost.restart()
        wait(lambda: is_let_in(owner, volume))
        with pytest.raises(OSError, match=r"not connected|connection abort|Input/output|Stale|bad state"):
            os.pwrite(held, b"late", 0)
        with suppress(OSError):
            os.close(held)
        stage(lost, volume, RWO, {"node": "node1"})
        assert (lost.publish(volume, mode=RWO) / "file").read_text() == "after"


def is_let_in(owner: Driver, volume: csi.Volume) -> bool:
    try:
        attach(owner, volume, "node1", RWO)
    except grpc.RpcError:
        return False
    return True

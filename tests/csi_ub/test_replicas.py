"""Strong volumes with three replicas: two nodes of three go on, one alone fails, and who was away catches up."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from tests.csi_ub import netns
from tests.csi_ub.cluster import cluster, condition, daemons, kill, wait
from tests.csi_ub.driver import Driver, StartDriver, capability, refused

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not shutil.which("glusterfsd"), reason="glusterfs-server is not installed"),
]
Code = grpc.StatusCode
THREE = {"replicas": "3"}


@pytest.fixture
def nodes(start: StartDriver) -> Iterator[list[Driver]]:
    with cluster(start) as drivers:
        yield drivers


def used(nodes: list[Driver], volume: csi.Volume) -> list[Path]:
    """Stage and publish a volume on each node; return where pods see it."""
    for node in nodes:
        node.stage(volume)
    return [node.publish(volume) for node in nodes]


def replicas(nodes: list[Driver], volume: csi.Volume) -> list[Path]:
    """Return where the bytes of a volume lie: on its owner, and on the nodes that keep replicas."""
    id_ = volume.volume_id
    own = nodes[0].pool / "volumes" / id_ / "share/data"
    return [own, *(node.pool / "replicas" / f"ur-{id_.partition('-')[2]}" / "share/data" for node in nodes[1:])]


def is_made(node: Driver) -> bool:
    try:
        node.create(parameters=THREE)
    except grpc.RpcError:
        return False
    return True


def is_staged(node: Driver, volume: csi.Volume) -> bool:
    try:
        node.stage(volume)
    except grpc.RpcError:
        return False
    return True


def test_each_of_three_nodes_keeps_all_bytes_until_the_volume_is_deleted(nodes: list[Driver]) -> None:
    volume = nodes[0].create(parameters=THREE)
    assert nodes[0].create(parameters=THREE) == volume, "a repeated call makes no other replicas"
    first, second, third = used(nodes, volume)
    (first / "file").write_text("written on node0")
    assert (second / "file").read_text() == (third / "file").read_text() == "written on node0"
    assert [(path / "file").read_text() for path in replicas(nodes, volume)] == ["written on node0"] * 3
    with refused(Code.FAILED_PRECONDITION, naming="in use"):
        nodes[0].delete(volume.volume_id)
    assert (third / "file").read_text() == "written on node0", "a refused call leaves the volume as it was"
    for node in nodes:
        node.unpublish(volume)
        node.unstage(volume)
    nodes[0].delete(volume.volume_id)
    wait(lambda: not any(path.exists() for path in replicas(nodes, volume)))
    for kind in ("brick", "client", "healer"):
        wait(lambda kind=kind: not any(daemons(node, kind) for node in nodes))  # type: ignore[misc]


def test_open_files_go_on_when_a_replica_dies_and_it_catches_up_when_it_returns(nodes: list[Driver]) -> None:
    volume = nodes[0].create(parameters=THREE)
    target = used(nodes[:1], volume)[0]
    with (target / "file").open("w") as held:
        held.write("before, ")
        held.flush()
        nodes[2].kill()  # so that nobody starts its brick again
        kill(nodes[2], "brick")
        held.write("meanwhile, ")
        held.flush()
        (target / "new").mkdir()
        seen = condition(nodes[0], volume, target)
        assert seen.abnormal
        assert "2 of 3 replicas" in seen.message
        assert "node2" in seen.message
        kill(nodes[0], "brick")  # its driver starts it again
        wait(lambda: len(daemons(nodes[0], "brick")) == 1)
        wait(lambda: "2 of 3" in condition(nodes[0], volume, target).message)
        held.write("after")
    assert (target / "file").read_text() == "before, meanwhile, after"
    nodes[2].restart()
    own, _, late = replicas(nodes, volume)
    wait(lambda: (late / "new").is_dir() and (late / "file").read_text() == "before, meanwhile, after")
    wait(lambda: not condition(nodes[0], volume, target).abnormal)
    assert (own / "file").read_text() == "before, meanwhile, after"


def test_an_owner_cut_off_fails_and_copies_nothing_old_while_the_other_two_go_on(nodes: list[Driver]) -> None:
    volume = nodes[0].create(parameters=THREE)
    alone, third = used([nodes[0], nodes[2]], volume)
    (alone / "file").write_text("before")
    netns.cut("node0", 0, off=True)
    with pytest.raises(OSError, match=r"not connected|Input/output|Read-only"):
        (alone / "file").write_text("lost")
    with pytest.raises(OSError, match=r"not connected|Input/output"):
        (alone / "file").read_text()
    wait(lambda: is_staged(nodes[1], volume))  # from what the cluster knows of the volume; its owner is silent
    second = nodes[1].publish(volume)
    (second / "file").write_text("meanwhile")
    assert (third / "file").read_text() == "meanwhile"
    request = csi.CreateSnapshotRequest(name="snapshot", source_volume_id=volume.volume_id)
    with refused(Code.UNAVAILABLE, naming=volume.volume_id):
        nodes[0].controller.CreateSnapshot(request)
    clone = csi.CreateVolumeRequest(name="clone", volume_capabilities=[capability()])
    clone.volume_content_source.volume.volume_id = volume.volume_id
    with refused(Code.UNAVAILABLE, naming=volume.volume_id):
        nodes[0].controller.CreateVolume(clone)
    netns.cut("node0", 0, off=False)
    wait(lambda: not condition(nodes[0], volume, alone).abnormal)
    assert (alone / "file").read_text() == "meanwhile"
    wait(lambda: (replicas(nodes, volume)[0] / "file").read_text() == "meanwhile")


def test_three_replicas_need_three_nodes_and_one_kind_of_volume(nodes: list[Driver], start: StartDriver) -> None:
    pair = start("pair", config={"peers": [{"node": "other", "address": "10.77.9.9"}]})
    with refused(Code.FAILED_PRECONDITION, naming="peers"):
        pair.create(parameters=THREE)
    for wrong in ({"consistency": "eventual"}, {"engine": "bind"}, {"type": "model"}):
        with refused(Code.INVALID_ARGUMENT, naming="replicas 3"):
            nodes[0].create(parameters={**THREE, **wrong})
    with refused(Code.INVALID_ARGUMENT, naming="not 1 or 3"):
        nodes[0].create(parameters={"replicas": "2"})
    assert list((pair.pool / "volumes").iterdir()) == []


def test_a_volume_is_made_as_soon_as_enough_nodes_answer(nodes: list[Driver]) -> None:
    nodes[2].kill()
    with refused(Code.UNAVAILABLE, naming="2 of 3 replicas"):
        nodes[0].create(parameters=THREE)
    nodes[2].restart()
    wait(lambda: is_made(nodes[0]))
    volume = nodes[0].create(parameters=THREE)
    (target,) = used(nodes[:1], volume)
    (target / "file").write_text("there")
    assert all((path / "file").read_text() == "there" for path in replicas(nodes, volume))


def test_a_volume_has_a_password_for_each_node_where_the_drivers_have_a_key(start: StartDriver, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(os.urandom(32).hex().encode())
    key.chmod(0o400)
    with cluster(start, peer_key_file=str(key)) as nodes:
        volume = nodes[0].create(parameters=THREE)
        first, second, _ = used(nodes, volume)
        (first / "file").write_text("for who has the key")
        assert (second / "file").read_text() == "for who has the key"
        bricks = [node.root / "run/ub-node/gluster" / f"{volume.volume_id}.brick.vol" for node in nodes]
        assert all("auth.login" in brick.read_text() and "auth.addr" not in brick.read_text() for brick in bricks)
        assert {brick.stat().st_mode & 0o777 for brick in bricks} == {0o600}
        stolen = tmp_path / "other"
        stolen.write_bytes(os.urandom(32).hex().encode())
        stolen.chmod(0o400)
        config = Path(nodes[2].arguments[-1])
        nodes[2].unpublish(volume)
        nodes[2].unstage(volume)
        nodes[2].stop()
        config.write_text(config.read_text().replace(str(key), str(stolen)))
        nodes[2].restart()
        with refused(Code.FAILED_PRECONDITION, naming="peer_key_file"):
            nodes[2].stage(volume)
        with refused(Code.FAILED_PRECONDITION, naming="peer_key_file"):
            nodes[2].controller.ControllerGetVolume(csi.ControllerGetVolumeRequest(volume_id=volume.volume_id))

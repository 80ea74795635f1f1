"""Strong volumes with three replicas made from a snapshot or a clone: all three have the bytes before the volume is."""

import hashlib
import os
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from tests.csi_ub.cluster import NODES, cluster, daemons, kill, wait
from tests.csi_ub.driver import Driver, StartDriver, capability, refused
from tests.csi_ub.pools import make_btrfs

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not shutil.which("glusterfsd"), reason="glusterfs-server is not installed"),
]
Code = grpc.StatusCode
THREE = {"replicas": "3"}
KILLS = 6


@pytest.fixture
def nodes(start: StartDriver) -> Iterator[list[Driver]]:
    with cluster(start) as drivers:
        yield drivers


def made_from(node: Driver, *, snapshot: str = "", volume: str = "", name: str = "copy") -> csi.Volume:
    request = csi.CreateVolumeRequest(name=name, volume_capabilities=[capability()], parameters=THREE)
    if snapshot:
        request.volume_content_source.snapshot.snapshot_id = snapshot
    else:
        request.volume_content_source.volume.volume_id = volume
    return node.controller.CreateVolume(request).volume


def snapshot_of(node: Driver, volume: csi.Volume, name: str = "snapshot") -> str:
    request = csi.CreateSnapshotRequest(name=name, source_volume_id=volume.volume_id)
    return node.controller.CreateSnapshot(request).snapshot.snapshot_id


def fill(folder: Path) -> None:
    """Make what a copy can get wrong: owners, modes, times, links, holes, attributes, and a file of many blocks."""
    folder.chmod(0o1775)
    (folder / "big").write_bytes(os.urandom(5 << 20))
    (folder / "deep/er").mkdir(parents=True)
    (folder / "deep").chmod(0o2750)
    (folder / "deep/er/small").write_text("small")
    os.chown(folder / "deep/er/small", 1234, 4321)
    os.utime(folder / "deep/er/small", (1, 2))
    (folder / "deep/hard").hardlink_to(folder / "deep/er/small")
    (folder / "soft").symlink_to("deep/er/small")
    (folder / "run me").write_text("#!/bin/sh\n")
    (folder / "run me").chmod(0o4755)
    os.setxattr(folder / "run me", "user.key", b"value")
    with (folder / "sparse").open("wb") as file:
        file.seek(8 << 20)
        file.write(b"end")
    os.mkfifo(folder / "pipe")


def tree(folder: Path) -> dict[str, object]:
    """Return what can be compared of a folder: all but the numbers of its inodes."""
    first: dict[int, str] = {}
    found: dict[str, object] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        state, name = path.lstat(), str(path.relative_to(folder))
        content: object = first.setdefault(state.st_ino, name)
        if stat.S_ISLNK(state.st_mode):
            content = path.readlink()
        elif stat.S_ISREG(state.st_mode):
            attributes = [each for each in os.listxattr(path) if each.startswith("user.")]
            content = (content, hashlib.sha256(path.read_bytes()).hexdigest(), attributes)
        found[name] = (state.st_mode, state.st_uid, state.st_gid, state.st_mtime_ns, content)
    return found


def filled(node: Driver, volume: csi.Volume) -> dict[str, object]:
    """Fill a volume through a pod that then leaves; return what is in it."""
    node.stage(volume)
    fill(node.publish(volume))
    wanted = tree(node.pool / "volumes" / volume.volume_id / "share/data")
    node.unpublish(volume)
    node.unstage(volume)
    return wanted


def differ(wanted: dict[str, object], folder: Path) -> dict[str, object]:
    """Return what is not as wanted in a folder, by name: as it should be, and as it is."""
    found = tree(folder)
    names = wanted.keys() | found.keys()
    return {name: (wanted.get(name), found.get(name)) for name in names if wanted.get(name) != found.get(name)}


def replicas(nodes: list[Driver], volume: csi.Volume) -> list[Path]:
    id_ = volume.volume_id
    own = nodes[0].pool / "volumes" / id_ / "share/data"
    return [own, *(node.pool / "replicas" / f"ur-{id_.partition('-')[2]}" / "share/data" for node in nodes[1:])]


def rubbish(nodes: list[Driver]) -> list[Path]:
    """Return what a volume must not leave: seeds, folders under construction, clients that nobody uses."""
    found = list(nodes[0].pool.glob("volumes/*/seed"))
    for node in nodes:
        found += [*(node.pool / "new").iterdir(), *(node.pool / "trash").iterdir()]
        found += (node.root / "run/ub-node/gluster/mounts").glob("*")
    return found


@pytest.mark.parametrize("kept", ["1", "3"])
def test_a_volume_from_a_snapshot_has_its_bytes_on_all_three_nodes_when_it_is_answered(
    nodes: list[Driver], kept: str
) -> None:
    origin = nodes[0].create("origin", parameters={"replicas": kept})
    wanted = filled(nodes[0], origin)
    snapshot = snapshot_of(nodes[0], origin)
    copy = made_from(nodes[0], snapshot=snapshot)
    assert [differ(wanted, path) for path in replicas(nodes, copy)] == [{}] * 3
    assert copy.content_source.snapshot.snapshot_id == snapshot
    assert rubbish(nodes) == []
    assert made_from(nodes[0], snapshot=snapshot) == copy, "a repeated call makes nothing new"
    clone = made_from(nodes[0], volume=origin.volume_id, name="clone")
    assert [differ(wanted, path) for path in replicas(nodes, clone)] == [{}] * 3
    # It is a volume like any other: written on one node, read on the next, and its original goes its own way.
    for node in nodes[1:]:
        node.stage(copy)
    second, third = (node.publish(copy) for node in nodes[1:])
    (second / "big").write_text("changed")
    assert (third / "big").read_text() == "changed"
    assert [(path / "big").read_text() for path in replicas(nodes, copy)] == ["changed"] * 3
    assert tree(replicas(nodes, clone)[0]) == wanted


def test_pools_with_quotas_keep_nothing_of_the_seed_and_count_the_copy_once(start: StartDriver, tmp_path: Path) -> None:
    with ExitStack() as stack:
        pools = {}
        for node in NODES:
            pools[node] = tmp_path / node / "var/lib/ub-node/pools/default"
            pools[node].mkdir(parents=True)
            make_btrfs(tmp_path / f"{node}.image", pools[node])
        nodes = stack.enter_context(cluster(start, pools=pools))
        origin = nodes[0].create("origin", required=32 << 20, parameters=THREE)
        nodes[0].stage(origin)
        target = nodes[0].publish(origin)
        fill(target)
        (target / "most of it").write_bytes(os.urandom(20 << 20))
        wanted = tree(nodes[0].pool / "volumes" / origin.volume_id / "share/data")
        copy = made_from(nodes[0], volume=origin.volume_id)  # of one moment, although it is in use
        assert [differ(wanted, path) for path in replicas(nodes, copy)] == [{}] * 3
        assert copy.capacity_bytes == 32 << 20
        assert [path for path in rubbish(nodes) if origin.volume_id not in str(path)] == []
        nodes[0].delete(copy.volume_id)


def test_a_volume_is_not_made_while_one_of_three_cannot_have_its_bytes(nodes: list[Driver]) -> None:
    origin = nodes[0].create("origin", parameters=THREE)
    snapshot = snapshot_of(nodes[0], origin)
    nodes[0].delete(origin.volume_id)
    nodes[2].kill()
    kill(nodes[2], "brick")
    with refused(Code.UNAVAILABLE, naming="2 of 3 replicas"):
        made_from(nodes[0], snapshot=snapshot)
    nodes[0].controller.DeleteSnapshot(csi.DeleteSnapshotRequest(snapshot_id=snapshot))
    nodes[2].restart()
    wait(lambda: is_made(nodes[0], snapshot))  # the snapshot was needed at the first call only
    assert rubbish(nodes) == []


def test_a_driver_killed_while_it_makes_one_goes_on_at_the_next_call(nodes: list[Driver]) -> None:
    origin = nodes[0].create("origin", parameters=THREE)
    wanted = filled(nodes[0], origin)
    snapshot = snapshot_of(nodes[0], origin)
    began = time.monotonic()
    nodes[0].delete(made_from(nodes[0], snapshot=snapshot).volume_id)
    step = (time.monotonic() - began) / KILLS
    for number in range(KILLS):
        call = threading.Thread(target=is_made, args=(nodes[0], snapshot))
        call.start()
        time.sleep(step * (number + 0.5))
        nodes[0].kill()
        call.join()
        nodes[0].restart()
        wait(lambda: is_made(nodes[0], snapshot))
        copy = made_from(nodes[0], snapshot=snapshot)
        assert [differ(wanted, path) for path in replicas(nodes, copy)] == [{}] * 3, f"after kill {number}"
        assert rubbish(nodes) == []
        listed = nodes[0].controller.ListVolumes(csi.ListVolumesRequest()).entries
        assert {each.volume.volume_id for each in listed} == {origin.volume_id, copy.volume_id}
        nodes[0].delete(copy.volume_id)
        wait(lambda copy=copy: not any(path.exists() for path in replicas(nodes, copy)))  # type: ignore[misc]
    wait(lambda: all(len(daemons(node, "brick")) == 1 for node in nodes))


def is_made(node: Driver, snapshot: str) -> bool:
    with suppress(grpc.RpcError):
        made_from(node, snapshot=snapshot)
        return True
    return False

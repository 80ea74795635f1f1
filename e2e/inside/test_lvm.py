"""Pools of type lvm on the device mapper of a distribution's kernel: real thin volumes, on a loop device."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as pb
from ubproto.csi.v1 import csi_pb2_grpc as rpc

from e2e.inside import csi
from e2e.inside.files import MiB, counting, fill, is_of_one_moment
from e2e.inside.test_pools import create, usage

GROUP, POOL = "vgub", "thin"
SIZE = 64 * MiB
# The guest has no udev that would make device nodes, so LVM makes them: lvm.conf(5). So it is in a container.
WITHOUT_UDEV = """devices { obtain_device_list_from_udev = 0 }
activation { udev_sync = 0 udev_rules = 0 verify_udev_operations = 1 }
"""


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout.strip()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder with a volume group of 1 GiB, of which 900 MiB are a thin pool."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(1024 * MiB)
    Path("/etc/lvm/lvmlocal.conf").write_text(WITHOUT_UDEV)
    for module in ("loop", "dm_thin_pool"):
        run("modprobe", module)
    device = run("losetup", "-f", "--show", image)
    try:
        run("vgcreate", GROUP, device)
        run("lvcreate", "--type", "thin-pool", "-L", "900M", "-n", POOL, GROUP)
        (tmp_path / "pool").mkdir()
        config = f"pools: [{{name: fast, type: lvm, path: {tmp_path}/pool, thin_pool: {GROUP}/{POOL}}}]\n"
        (tmp_path / "csi.yaml").write_text(config)
        yield tmp_path
    finally:
        for point in reversed(mounts(tmp_path)):
            subprocess.run(["umount", "-l", point], check=False)
        subprocess.run(["vgremove", "-f", "-y", GROUP], check=False)
        subprocess.run(["losetup", "-d", device], check=False)


@pytest.fixture
def node(place: Path) -> Iterator[csi.Node]:
    with driver(place) as node:
        yield node


def driver(place: Path) -> AbstractContextManager[csi.Node]:
    return csi.node("node0", place, "--config", str(place / "csi.yaml"))


def mounts(folder: Path) -> list[str]:
    points = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [point for point in points if point.startswith(f"{folder}/")]


def thin_volumes() -> dict[str, int]:
    """Return names and sizes, as LVM tells them."""
    text = run("lvs", "--reportformat", "json", "--units", "b", "--nosuffix", "-o", "lv_name,lv_size", GROUP)
    found = {each["lv_name"]: int(each["lv_size"]) for each in json.loads(text)["report"][0]["lv"]}
    del found[POOL]
    return found


def controller(node: csi.Node) -> rpc.ControllerStub:
    return rpc.ControllerStub(node.channel)


def available(node: csi.Node) -> int:
    return controller(node).GetCapacity(pb.GetCapacityRequest(), timeout=csi.CALL_S).available_capacity


def snapshot(node: csi.Node, volume: pb.Volume, name: str) -> str:
    request = pb.CreateSnapshotRequest(name=name, source_volume_id=volume.volume_id)
    return controller(node).CreateSnapshot(request, timeout=csi.CALL_S).snapshot.snapshot_id


def drop_snapshot(node: csi.Node, ident: str) -> None:
    controller(node).DeleteSnapshot(pb.DeleteSnapshotRequest(snapshot_id=ident), timeout=csi.CALL_S)


def expand(node: csi.Node, volume: pb.Volume, size: int) -> int:
    request = pb.ControllerExpandVolumeRequest(volume_id=volume.volume_id)
    request.capacity_range.required_bytes = size
    return controller(node).ControllerExpandVolume(request, timeout=csi.CALL_S).capacity_bytes


def nothing_left(place: Path) -> None:
    assert thin_volumes() == {}
    assert mounts(place) == []
    left = [path for name in ("volumes", "snapshots", "new", "trash") for path in (place / "pool" / name).iterdir()]
    assert left == []


def test_a_thin_volume_ends_at_its_size_grows_in_use_and_gives_its_space_back(node: csi.Node, place: Path) -> None:
    before = available(node)
    volume, other = create(node, "small", SIZE), create(node, "other", SIZE)
    assert thin_volumes() == {volume.volume_id: SIZE, other.volume_id: SIZE}
    target, neighbour = node.publish(volume, "0a1b"), node.publish(other, "0a1c")
    assert SIZE - 16 * MiB <= fill(target / "file", 2 * SIZE) < SIZE
    assert fill(neighbour / "file", 8 * MiB) == 8 * MiB, "a full volume leaves its neighbours alone"
    seen = usage(node, volume, target)
    assert (seen.total, seen.used + seen.available) == (SIZE, SIZE)
    assert available(node) < before - SIZE + 16 * MiB
    assert expand(node, volume, 2 * SIZE) == usage(node, volume, target).total == 2 * SIZE
    assert fill(target / "more", SIZE - 8 * MiB) == SIZE - 8 * MiB
    inside = os.statvfs(target)
    assert inside.f_blocks * inside.f_frsize > SIZE, "df in a pod shows it"
    (target / "file").unlink()
    (target / "more").unlink()
    os.sync()
    assert available(node) > before - SIZE, "what a pod deletes goes back to the pool"
    for each, pod in ((volume, "0a1b"), (other, "0a1c")):
        node.unpublish(each, pod)
        node.delete(each)
    nothing_left(place)


def test_a_snapshot_in_use_is_of_one_moment_and_clones_share_its_blocks(node: csi.Node, place: Path) -> None:
    volume = create(node, "source", 256 * MiB)
    target = node.publish(volume, "0a1b")
    assert fill(target / "large", 150 * MiB) == 150 * MiB
    before = available(node)
    with counting(target):
        taken = [snapshot(node, volume, f"snapshot{number}") for number in range(4)]
    content = (target / "large").read_bytes()
    node.unpublish(volume, "0a1b")
    node.delete(volume)
    for number, each in enumerate(taken):
        clone = create(node, f"clone{number}", 512 * MiB, each)
        shown = node.publish(clone, "0a1c")
        assert is_of_one_moment(shown)
        assert (shown / "large").read_bytes() == content
        size = os.statvfs(shown)
        assert size.f_blocks * size.f_frsize > 400 * MiB, "it is as large as it was asked for"
        assert before - available(node) < 200 * MiB, "four copies of 150 MiB would not be so small"
        node.unpublish(clone, "0a1c")
        node.delete(clone)
        drop_snapshot(node, each)
    nothing_left(place)


def test_a_driver_killed_in_the_middle_of_calls_leaves_nothing_that_the_next_one_does_not_find(place: Path) -> None:
    """Calls are cut off at moments that no test chooses; what was answered is whole, and the rest is swept out."""
    kept: list[pb.Volume] = []
    for number in range(6):
        with pytest.raises(AssertionError, match="ended with -9"):
            _kill_at_work(place, f"round{number}", kept, after_s=4 + number * 3.7)
    with driver(place) as node:
        entries = controller(node).ListVolumes(pb.ListVolumesRequest(), timeout=csi.CALL_S).entries
        found = {each.volume.volume_id for each in entries}
        assert {each.volume_id for each in kept} <= found
        listed = controller(node).ListSnapshots(pb.ListSnapshotsRequest(), timeout=csi.CALL_S).entries
        assert set(thin_volumes()) == {*found, *(known.snapshot.snapshot_id for known in listed)}
        for known in listed:
            drop_snapshot(node, known.snapshot.snapshot_id)
        for each in entries:
            assert not each.status.volume_condition.abnormal, each.status.volume_condition.message
            node.delete(each.volume)
        nothing_left(place)


def test_after_a_reboot_thin_volumes_are_found_and_mounted_again(place: Path) -> None:
    with driver(place) as node:
        volume = create(node, "kept", SIZE)
        (node.publish(volume, "0a1b") / "file").write_text("stays")
        taken = snapshot(node, volume, "snapshot")
        node.unpublish(volume, "0a1b")
    for point in reversed(mounts(place)):
        run("umount", point)
    run("vgchange", "-an", GROUP)
    run("vgchange", "-ay", GROUP)
    with driver(place) as node:
        clone = create(node, "clone", SIZE, taken)
        for each in (volume, clone):
            target = node.publish(each, "0a1b")
            assert (target / "file").read_text() == "stays"
            node.unpublish(each, "0a1b")
            node.delete(each)
        drop_snapshot(node, taken)
        nothing_left(place)


def _kill_at_work(place: Path, name: str, made: list[pb.Volume], after_s: float) -> None:
    with driver(place) as node:
        worker = threading.Thread(target=_make_many, args=(node, name, made))
        worker.start()
        worker.join(after_s)
        for process in _drivers(place):
            os.kill(process, signal.SIGKILL)
        worker.join()


def _make_many(node: csi.Node, name: str, made: list[pb.Volume]) -> None:
    """Make volumes and snapshots of them until the driver answers no more; add those that it answered for."""
    with suppress(grpc.RpcError):
        for number in range(100):
            made.append(create(node, f"{name}-{number}", 16 * MiB))
            snapshot(node, made[-1], f"{name}-{number}")


def _drivers(place: Path) -> list[int]:
    """Return the processes of the driver of this test."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_bytes().split(b"\0")
        if f"unix://{place}/node0/csi.sock".encode() in words:
            found.append(int(path.parent.name))
    return found

"""ub-csi with a real containerd: one volume in containers of two nodes.

Both nodes are roots on this one kernel (level: model). Two kernels share volumes in e2e/outside.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.inside import csi
from e2e.inside.cri import Container, Runtime
from e2e.inside.programs import mount_points

FOLDER = Path("/var/lib/ub-e2e")


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[csi.Node, csi.Node]]:
    with csi.node("node0", FOLDER) as first, csi.node("node1", FOLDER) as second:
        yield first, second


def mounts_below(folder: Path) -> list[str]:
    """Return the mount points of the node below ``folder``."""
    return [point for point in mount_points() if point.startswith(f"{folder}/")]


def start(runtime: Runtime, name: str, folder: Path) -> Container:
    """Start a container that has ``folder`` of the node at ``/data``, as the kubelet mounts a published volume."""
    return runtime.run_container(runtime.run_pod(name, host_network=True), mounts={folder: "/data"})


def check_shared(runtime: Runtime, writer: Container, reader: Container) -> None:
    code, said = runtime.execute(writer, "sh", "-c", "echo hello from the other node > /data/greeting")
    assert code == 0, said
    code, said = runtime.execute(reader, "cat", "/data/greeting")
    assert (code, said) == (0, "hello from the other node\n")


def test_containers_on_two_nodes_see_one_volume(runtime: Runtime, nodes: tuple[csi.Node, csi.Node]) -> None:
    volume = nodes[0].create("claim")
    targets = [node.publish(volume, "0a1b") for node in nodes]
    writer, reader = (start(runtime, f"pod{number}", target) for number, target in enumerate(targets))
    check_shared(runtime, writer, reader)
    check_shared(runtime, reader, writer)
    runtime.remove_all()
    for node in nodes:
        node.unpublish(volume, "0a1b")
    assert mounts_below(FOLDER) == []
    assert not any(target.exists() for target in targets)
    nodes[0].delete(volume)
    left = [
        path for path in (FOLDER / "node0").rglob("*") if volume.volume_id in path.name and "kubelet" not in str(path)
    ]
    assert left == [], "the volume's data is gone from the pool"


def test_a_container_keeps_its_volume_while_the_driver_is_away(runtime: Runtime) -> None:
    with csi.node("node2", FOLDER) as node:
        volume = node.create("claim")
        container = start(runtime, "pod", node.publish(volume, "0a1b"))
    code, said = runtime.execute(container, "sh", "-c", "echo still here > /data/greeting && cat /data/greeting")
    assert (code, said) == (0, "still here\n")
    runtime.remove_all()
    with csi.node("node2", FOLDER) as node:
        node.unpublish(volume, "0a1b")
        node.delete(volume)
    assert mounts_below(FOLDER) == []


def test_the_checks_of_this_file_fail_when_nothing_is_mounted(runtime: Runtime, tmp_path: Path) -> None:
    """The negative control: a driver that answers OK and mounts nothing leaves two folders that share nothing."""
    folders = [tmp_path / "node0", tmp_path / "node1"]
    for folder in folders:
        folder.mkdir()
    writer, reader = (start(runtime, f"pod{number}", folder) for number, folder in enumerate(folders))
    with pytest.raises(AssertionError):
        check_shared(runtime, writer, reader)

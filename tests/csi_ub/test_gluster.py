"""Strong volumes between nodes with networks of their own: the GlusterFS engine."""

import fcntl
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from tests.csi_ub import netns
from tests.csi_ub.cluster import cluster, condition, daemons, is_stopped, kill, wait
from tests.csi_ub.driver import RWO, Driver, StartDriver, refused
from ubhost.kernel import mountinfo

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not shutil.which("glusterfsd"), reason="glusterfs-server is not installed"),
]
Code = grpc.StatusCode


@pytest.fixture
def nodes(start: StartDriver) -> Iterator[list[Driver]]:
    with cluster(start) as drivers:
        yield drivers


def test_three_nodes_see_each_write_at_once_and_share_locks(nodes: list[Driver]) -> None:
    volume = nodes[0].create()
    assert volume.volume_context["engine"] == "glusterfs"
    assert [dict(each.segments) for each in volume.accessible_topology] == [
        {"topology.unifiedbus.com/supernode": "default"}
    ]
    targets = []
    for node in nodes:
        node.stage(volume)
        targets.append(node.publish(volume))
    (targets[0] / "file").write_text("first")
    with (targets[1] / "file").open("r+") as there, (targets[2] / "file").open() as reader:
        assert reader.read() == "first"
        there.write("other")
        there.flush()
        reader.seek(0)
        assert reader.read() == "other"
        fcntl.flock(there, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            fcntl.flock(reader, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(there, fcntl.LOCK_UN)  # GlusterFS keeps both kinds in one table: they exclude one another
        fcntl.lockf(there, fcntl.LOCK_EX)
        with (targets[0] / "file").open("r+") as third, pytest.raises(OSError, match="unavailable"):
            fcntl.lockf(third, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with refused(Code.FAILED_PRECONDITION, naming="node0"):
        nodes[0].delete(volume.volume_id)
    for node in nodes:
        node.unpublish(volume)
        node.unstage(volume)
        assert daemons(node, "client") == []
    nodes[0].delete(volume.volume_id)
    assert daemons(nodes[0], "brick") == []


def test_volumes_that_are_made_at_once_get_ports_of_their_own(nodes: list[Driver]) -> None:
    with ThreadPoolExecutor(4) as pool:
        volumes = list(pool.map(nodes[0].create, [f"pvc-{number}" for number in range(4)]))
    assert len({volume.volume_context["port"] for volume in volumes}) == 4


def test_a_single_node_volume_is_refused_to_a_second_machine(nodes: list[Driver]) -> None:
    volume = nodes[0].create(mode=RWO)
    nodes[1].stage(volume, RWO)
    with refused(Code.FAILED_PRECONDITION, naming="node1"):
        nodes[2].stage(volume, RWO)
    assert mountinfo.at(mountinfo.read(), nodes[2].staging(volume)) == ()
    nodes[1].unstage(volume)
    nodes[2].stage(volume, RWO)


def test_data_daemons_outlive_the_driver(nodes: list[Driver]) -> None:
    volume = nodes[0].create()
    nodes[1].stage(volume)
    target = nodes[1].publish(volume)
    with (target / "file").open("w") as held:
        for node in nodes[:2]:
            node.kill()
        held.write("still here")
        held.flush()
        for node in nodes[:2]:
            node.restart()
        assert len(daemons(nodes[0], "brick")) == len(daemons(nodes[1], "client")) == 1
        held.write(" and here")
    assert (target / "file").read_text() == "still here and here"
    nodes[1].publish(volume)
    assert len(mountinfo.at(mountinfo.read(), target)) == 1
    assert not condition(nodes[1], volume, target).abnormal


def test_a_dead_client_is_seen_replaced_and_taken_away(nodes: list[Driver]) -> None:
    volume = nodes[0].create()
    node = nodes[1]
    node.stage(volume)
    first, second = node.publish(volume, "pod1"), node.publish(volume, "pod2")
    (first / "file").write_text("kept")
    kill(node, "client")
    with pytest.raises(OSError, match=r"not connected|connection abort"):
        (first / "file").read_text()
    assert condition(node, volume, first).abnormal
    node.publish(volume, "pod1")
    assert (first / "file").read_text() == "kept"
    assert len(mountinfo.at(mountinfo.read(), first)) == 1
    node.stage(volume)
    node.unpublish(volume, "pod2")
    assert not second.exists()
    kill(node, "client")
    node.unpublish(volume, "pod1")
    node.unstage(volume)
    nodes[0].delete(volume.volume_id)


def test_a_dead_brick_makes_the_volume_abnormal_until_the_driver_brings_it_back(nodes: list[Driver]) -> None:
    volume = nodes[0].create()
    nodes[1].stage(volume)
    target = nodes[1].publish(volume)
    with (target / "file").open("w") as held:
        held.write("before")
        held.flush()
        kill(nodes[0], "brick")
        seen = condition(nodes[1], volume, target)
        assert seen.abnormal
        assert "node0" in seen.message
        nodes[1].publish(volume)  # a repeated call is answered from what this node knows
        wait(lambda: not condition(nodes[1], volume, target).abnormal)
        held.write(" and after")
    assert (target / "file").read_text() == "before and after"


def test_a_brick_that_died_while_no_driver_ran_comes_back_with_the_driver(nodes: list[Driver]) -> None:
    volume = nodes[0].create()
    nodes[1].stage(volume)
    target = nodes[1].publish(volume)
    nodes[0].stop()
    kill(nodes[0], "brick")
    nodes[0].restart()
    request = csi.ControllerGetVolumeRequest(volume_id=volume.volume_id)
    assert not nodes[0].controller.ControllerGetVolume(request).status.volume_condition.abnormal
    wait(lambda: not condition(nodes[1], volume, target).abnormal)


def test_a_hung_client_holds_up_nobody_else(nodes: list[Driver]) -> None:
    hung, well = nodes[0].create("hung"), nodes[0].create("well")
    node = nodes[1]
    node.stage(hung)
    target = node.publish(hung)
    (pid,) = daemons(node, "client")
    node.stage(well)
    other = node.publish(well)
    threads = len(list(Path(f"/proc/{node.process.pid}/task").iterdir()))
    os.kill(pid, signal.SIGSTOP)
    try:
        wait(lambda: is_stopped(pid))
        for _ in range(5):
            request = csi.NodeGetVolumeStatsRequest(volume_id=hung.volume_id, volume_path=str(target))
            assert node.rpc.NodeGetVolumeStats(request, timeout=30).volume_condition.abnormal
        node.identity.Probe(csi.ProbeRequest(), timeout=30)
        assert not condition(node, well, other).abnormal
        assert len(list(Path(f"/proc/{node.process.pid}/task").iterdir())) < threads + 70
    finally:
        os.kill(pid, signal.SIGCONT)
    wait(lambda: not condition(node, hung, target).abnormal)


def test_a_node_cut_off_fails_instead_of_diverging(nodes: list[Driver]) -> None:
    volume = nodes[0].create()
    for node in nodes[:2]:
        node.stage(volume)
    here, there = nodes[0].publish(volume), nodes[1].publish(volume)
    (there / "file").write_text("before")
    netns.cut("node1", 1, off=True)
    with pytest.raises(OSError, match=r"not connected|Input/output"):
        (there / "file").write_text("lost")
    (here / "file").write_text("meanwhile")
    netns.cut("node1", 1, off=False)
    wait(lambda: not condition(nodes[1], volume, there).abnormal, 40)
    assert (there / "file").read_text() == "meanwhile"


def test_a_reboot_of_a_node_gives_its_volumes_back(nodes: list[Driver]) -> None:
    volume = nodes[0].create()
    node = nodes[1]
    node.stage(volume)
    node.kill()
    kill(node, "client")
    for mount in reversed(mountinfo.below(mountinfo.read(), node.root)):
        os.system(f"umount -l {mount.target}")
    shutil.rmtree(node.root / "run/ub-node")
    node.restart()
    nodes[0].delete(volume.volume_id)


def test_a_volume_of_a_stranger_is_not_reached(nodes: list[Driver], start: StartDriver) -> None:
    volume = nodes[0].create()
    stranger = start("node9", config={"peers": [{"node": "node1", "address": "10.77.9.2"}]})
    with refused(Code.FAILED_PRECONDITION, naming="node0"):
        stranger.stage(volume)


def test_a_forged_place_is_not_believed_whether_the_owner_answers_or_not(nodes: list[Driver]) -> None:
    volume = nodes[0].create()
    volume.volume_context["port"] = "1; rm -rf /"
    nodes[1].stage(volume)  # where the volume is the owner says
    nodes[1].unstage(volume)
    nodes[0].stop()
    with refused(Code.NOT_FOUND):
        nodes[1].stage(volume)

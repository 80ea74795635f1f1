"""The driver in a container, as the chart runs it: what carries the volumes of running pods is not the container's.

The container is privileged, has the node's processes in sight, and its files: chroot(8) stands for an image of ours.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as pb
from ubproto.csi.v1 import csi_pb2_grpc as rpc

from e2e.inside.cri import Runtime
from e2e.inside.csi import CALL_S, Node
from e2e.inside.programs import BUNDLE

FOLDER = Path("/var/lib/ub-e2e/contained")
NAME = "csi-driver"
WITH_SYSTEMD, WITHOUT = "/usr/bin:/usr/sbin:/bin:/sbin", "/usr/sbin:/sbin"  # systemd-run is in /usr/bin
PEERS = [{"node": "node0", "address": "127.0.0.1"}, {"node": "node1", "address": "192.0.2.1"}]


@contextmanager
def driver(runtime: Runtime, path: str) -> Iterator[Node]:
    """Run the driver in a container, with the programs of ``path``; the container is killed at the end."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "config.yaml").write_text(json.dumps({"peers": PEERS}))
    socket = FOLDER / "csi.sock"
    socket.unlink(missing_ok=True)
    command = (str(BUNDLE / "ub-csi"), "--mode", "all", "--endpoint", f"unix://{socket}", "--node-id", "node0")
    pod = runtime.run_pod(NAME, host_network=True, privileged=True)
    main = (*("/bin/chroot", "/host"), *command, "--config", str(FOLDER / "config.yaml"))
    env = {"PATH": path, "UB_ROOT": str(FOLDER)}
    container = runtime.run_container(pod, *main, mounts={Path("/"): "/host"}, env=env)
    try:
        with grpc.insecure_channel(f"unix://{socket}") as channel:
            rpc.IdentityStub(channel).Probe(pb.ProbeRequest(), timeout=CALL_S, wait_for_ready=True)
            yield Node("node0", FOLDER / "kubelet", channel)
    finally:
        os.kill(container.pid, signal.SIGKILL)
        runtime.remove_pod(pod)


def daemons() -> dict[str, int]:
    """Return the data daemons that run, by kind."""
    found = {}
    for file in (FOLDER / "run/ub-node/gluster").glob("*.pid"):
        pid = int(file.read_text())
        if Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
            found[file.name.split(".")[1]] = pid
    return found


def wait_until_dead() -> None:
    deadline = time.monotonic() + 60
    while daemons():
        assert time.monotonic() < deadline, daemons()
        time.sleep(0.2)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    subprocess.run(["systemctl", "stop", "ub-csi-*.scope"], check=False)


def test_data_daemons_outlive_the_container_of_the_driver(runtime: Runtime) -> None:
    with driver(runtime, WITH_SYSTEMD) as node:
        volume = node.create("outlives", engine="glusterfs")
        target = node.publish(volume, "0a1b")
        (target / "file").write_text("before")
        before = daemons()
        assert set(before) == {"brick", "client"}
        for pid in before.values():
            assert "/ub-csi-gluster" in Path(f"/proc/{pid}/cgroup").read_text(), "in a scope of its own"
        held = (target / "file").open("r+")
    assert daemons() == before, "the container was killed, and nothing else"
    held.write("after!")
    held.close()
    assert (target / "file").read_text() == "after!"
    with driver(runtime, WITH_SYSTEMD) as node:
        again = (target / "file").read_text()
        assert (daemons(), again) == (before, "after!"), "the next driver takes them as they are"
        stats = pb.NodeGetVolumeStatsRequest(volume_id=volume.volume_id, volume_path=str(target))
        condition = rpc.NodeStub(node.channel).NodeGetVolumeStats(stats, timeout=CALL_S).volume_condition
        assert not condition.abnormal, condition.message
        node.unpublish(volume, "0a1b")
        node.delete(volume)
        wait_until_dead()
    assert "ub-csi-gluster" not in subprocess.run(
        ["systemctl", "list-units", "--plain", "--no-legend", "ub-csi-*.scope"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


def test_without_systemd_they_end_with_the_container_and_the_next_driver_starts_them_again(runtime: Runtime) -> None:
    """The negative control: what the test above sees is the scopes' doing."""
    with driver(runtime, WITHOUT) as node:
        volume = node.create("ends", engine="glusterfs")
        target = node.publish(volume, "0a1b")
        (target / "file").write_text("before")
        assert set(daemons()) == {"brick", "client"}
    wait_until_dead()
    with driver(runtime, WITHOUT) as node:
        node.unpublish(volume, "0a1b")  # what is mounted is dead
        assert (node.publish(volume, "0a1b") / "file").read_text() == "before"
        node.unpublish(volume, "0a1b")
        node.delete(volume)

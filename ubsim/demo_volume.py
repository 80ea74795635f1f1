"""The part of the demo that is kubelet to ``ub-csi``: one volume, published on two nodes, and the way back."""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from ubproto.csi.v1 import csi_pb2 as csi
from ubproto.csi.v1 import csi_pb2_grpc

from ubhost.errors import HostFault
from ubsim.handles import NodeHandle

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 120.0

CAPABILITY = csi.VolumeCapability(
    mount=csi.VolumeCapability.MountVolume(),
    access_mode=csi.VolumeCapability.AccessMode(mode=csi.VolumeCapability.AccessMode.MULTI_NODE_MULTI_WRITER),
)


@dataclass(frozen=True, slots=True)
class Driver:
    """``ub-csi`` of one node, and where kubelet would mount."""

    node: NodeHandle
    channel: grpc.Channel

    @property
    def staging(self) -> Path:
        return self.node.root / "var/lib/kubelet/plugins/kubernetes.io/csi/demo/globalmount"

    @property
    def target(self) -> Path:
        return self.node.root / "var/lib/kubelet/pods/demo/volumes/kubernetes.io~csi/shared/mount"


@contextmanager
def driver(command: Sequence[str], node: NodeHandle) -> Iterator[Driver]:
    """Run ``ub-csi`` for ``node`` while the body runs.

    Raises:
        HostFault: it does not serve; its last words are told.
    """
    socket, log = node.root / "run/csi.sock", node.root / "run/csi.log"
    arguments = [*command, "--node-id", node.name, "--endpoint", f"unix://{socket}"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            arguments, env={**os.environ, **node.environ}, stdout=out, stderr=out, start_new_session=True
        )
    try:
        with grpc.insecure_channel(f"unix://{socket}") as channel:
            _await_ready(process, channel, log)
            yield Driver(node, channel)
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_ready(process: "subprocess.Popen[bytes]", channel: grpc.Channel, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            csi_pb2_grpc.IdentityStub(channel).Probe(csi.ProbeRequest(), timeout=2.0)
        except grpc.RpcError:
            time.sleep(0.05)
        else:
            return
    raise HostFault(f"ub-csi does not serve: {log.read_text(errors='replace').strip()[-300:]}")


@contextmanager
def shared_volume(owner: Driver, other: Driver) -> Iterator[csi.Volume]:
    """A volume of ``owner``, mounted at the ``target`` of both nodes while the body runs."""
    created = csi_pb2_grpc.ControllerStub(owner.channel).CreateVolume(
        csi.CreateVolumeRequest(
            name="pvc-demo",
            capacity_range=csi.CapacityRange(required_bytes=1 << 20),
            volume_capabilities=[CAPABILITY],
        ),
        timeout=CALL_TIMEOUT_S,
    )
    volume = created.volume
    published: list[Driver] = []
    try:
        for one in (owner, other):
            published.append(one)
            _publish(one, volume)
        yield volume
    finally:
        for one in reversed(published):
            _unpublish(one, volume)
        delete = csi.DeleteVolumeRequest(volume_id=volume.volume_id)
        csi_pb2_grpc.ControllerStub(owner.channel).DeleteVolume(delete, timeout=CALL_TIMEOUT_S)


def _publish(one: Driver, volume: csi.Volume) -> None:
    rpc = csi_pb2_grpc.NodeStub(one.channel)
    one.staging.mkdir(parents=True, exist_ok=True)
    one.target.parent.mkdir(parents=True, exist_ok=True)
    rpc.NodeStageVolume(
        csi.NodeStageVolumeRequest(
            volume_id=volume.volume_id,
            staging_target_path=str(one.staging),
            volume_capability=CAPABILITY,
            volume_context=volume.volume_context,
        ),
        timeout=CALL_TIMEOUT_S,
    )
    rpc.NodePublishVolume(
        csi.NodePublishVolumeRequest(
            volume_id=volume.volume_id,
            staging_target_path=str(one.staging),
            target_path=str(one.target),
            volume_capability=CAPABILITY,
            volume_context=volume.volume_context,
        ),
        timeout=CALL_TIMEOUT_S,
    )


def _unpublish(one: Driver, volume: csi.Volume) -> None:
    rpc = csi_pb2_grpc.NodeStub(one.channel)
    rpc.NodeUnpublishVolume(
        csi.NodeUnpublishVolumeRequest(volume_id=volume.volume_id, target_path=str(one.target)), timeout=CALL_TIMEOUT_S
    )
    rpc.NodeUnstageVolume(
        csi.NodeUnstageVolumeRequest(volume_id=volume.volume_id, staging_target_path=str(one.staging)),
        timeout=CALL_TIMEOUT_S,
    )

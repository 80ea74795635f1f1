"""What a cluster does with a CSI driver: its provisioner creates a volume, each kubelet stages and publishes it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from ubproto.csi.v1 import csi_pb2 as pb
from ubproto.csi.v1 import csi_pb2_grpc as rpc

from e2e.inside.programs import daemon

CALL_S = 300.0


@dataclass(frozen=True)
class Node:
    """A node with its driver; ``kubelet`` is the kubelet's folder there."""

    name: str
    kubelet: Path
    channel: grpc.Channel

    def create(self, name: str, **parameters: str) -> pb.Volume:
        """Make a volume; what is not ready yet is asked for again, as the provisioner does."""
        request = pb.CreateVolumeRequest(name=name, volume_capabilities=[shared()], parameters=parameters)
        deadline = time.monotonic() + CALL_S
        while True:
            try:
                return rpc.ControllerStub(self.channel).CreateVolume(request, timeout=CALL_S).volume
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:
                    raise
                time.sleep(1)

    def delete(self, volume: pb.Volume) -> None:
        request = pb.DeleteVolumeRequest(volume_id=volume.volume_id)
        rpc.ControllerStub(self.channel).DeleteVolume(request, timeout=CALL_S)

    def staging(self, volume: pb.Volume) -> Path:
        return self.kubelet / "plugins/kubernetes.io/csi/csi-ub.unifiedbus.com" / volume.volume_id / "globalmount"

    def target(self, volume: pb.Volume, pod_uid: str) -> Path:
        return self.kubelet / "pods" / pod_uid / "volumes/kubernetes.io~csi" / volume.volume_id / "mount"

    def publish(self, volume: pb.Volume, pod_uid: str) -> Path:
        """Stage and publish for a pod; return the folder that its container mounts."""
        staging, target = self.staging(volume), self.target(volume, pod_uid)
        staging.mkdir(parents=True, exist_ok=True)  # the kubelet makes this one; the driver makes the target
        target.parent.mkdir(parents=True, exist_ok=True)
        stub = rpc.NodeStub(self.channel)
        stage = pb.NodeStageVolumeRequest(
            volume_id=volume.volume_id,
            staging_target_path=str(staging),
            volume_capability=shared(),
            volume_context=volume.volume_context,
        )
        stub.NodeStageVolume(stage, timeout=CALL_S)
        publish = pb.NodePublishVolumeRequest(
            volume_id=volume.volume_id,
            staging_target_path=str(staging),
            target_path=str(target),
            volume_capability=shared(),
            volume_context=volume.volume_context,
        )
        stub.NodePublishVolume(publish, timeout=CALL_S)
        return target

    def unpublish(self, volume: pb.Volume, pod_uid: str) -> None:
        """Undo ``publish``."""
        stub = rpc.NodeStub(self.channel)
        target, staging = str(self.target(volume, pod_uid)), str(self.staging(volume))
        stub.NodeUnpublishVolume(
            pb.NodeUnpublishVolumeRequest(volume_id=volume.volume_id, target_path=target), timeout=CALL_S
        )
        stub.NodeUnstageVolume(
            pb.NodeUnstageVolumeRequest(volume_id=volume.volume_id, staging_target_path=staging), timeout=CALL_S
        )


def shared() -> pb.VolumeCapability:
    """Return the capability of a volume that many nodes write (ReadWriteMany)."""
    mode = pb.VolumeCapability.AccessMode(mode=pb.VolumeCapability.AccessMode.MULTI_NODE_MULTI_WRITER)
    return pb.VolumeCapability(mount=pb.VolumeCapability.MountVolume(), access_mode=mode)


@contextmanager
def node(name: str, folder: Path, *more: str) -> Iterator[Node]:
    """Run the driver of one node, with ``more`` arguments; its root and its kubelet's folder lie below ``folder``."""
    root = folder / name
    root.mkdir(parents=True, exist_ok=True)
    with _driver(name, "all", root, root / "csi.sock", *more) as channel:
        yield Node(name, root / "kubelet", channel)


@contextmanager
def provisioner(name: str) -> Iterator[Node]:
    """Create and delete volumes of a node whose own driver, an installed one, only mounts."""
    with _driver(name, "controller", Path("/"), Path("/run/provisioner.sock")) as channel:
        yield Node(name, Path("/nowhere"), channel)


@contextmanager
def _driver(name: str, mode: str, root: Path, socket: Path, *more: str) -> Iterator[grpc.Channel]:
    arguments = ("--mode", mode, "--endpoint", f"unix://{socket}", "--node-id", name, *more)
    with (
        daemon("ub-csi", *arguments, env={"UB_ROOT": str(root)}),
        grpc.insecure_channel(f"unix://{socket}") as channel,
    ):
        rpc.IdentityStub(channel).Probe(pb.ProbeRequest(), timeout=CALL_S, wait_for_ready=True)
        yield channel

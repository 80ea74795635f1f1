"""A driver process and its client: the shortest way for a test to say what a cluster would."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
import pytest
import yaml
from ubproto.csi.v1 import csi_pb2 as csi
from ubproto.csi.v1 import csi_pb2_grpc

REPO = Path(__file__).parents[2]
Mode = csi.VolumeCapability.AccessMode
RWX = Mode.MULTI_NODE_MULTI_WRITER
RWO = Mode.SINGLE_NODE_MULTI_WRITER
RWOP = Mode.SINGLE_NODE_SINGLE_WRITER
ROX = Mode.MULTI_NODE_READER_ONLY


class StartDriver(Protocol):
    def __call__(self, node: str = ..., **options: object) -> "Driver": ...


def command() -> list[str]:
    """Return how the driver is started: the built executable if ``UB_BIN_DIR`` is set, else the sources."""
    built = os.environ.get("UB_BIN_DIR")
    return [f"{built}/ub-csi"] if built else [sys.executable, "-m", "csi_ub"]


def environment(**more: str) -> dict[str, str]:
    """Return the environment a driver is started in."""
    return {**os.environ, "PYTHONPATH": f"{REPO}:{REPO}/proto", **more}


def ubnode(driver: "Driver", *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line for people on the node of ``driver``."""
    built = os.environ.get("UB_BIN_DIR")
    command = [f"{built}/ubnode"] if built else [sys.executable, "-m", "ubnode"]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, env=environment(UB_ROOT=str(driver.root)), cwd=REPO
    )


def capability(
    mode: int = RWX, *, block: bool = False, flags: tuple[str, ...] = (), group: str = ""
) -> csi.VolumeCapability:
    access = Mode(mode=mode)  # type: ignore[arg-type]
    if block:
        return csi.VolumeCapability(block=csi.VolumeCapability.BlockVolume(), access_mode=access)
    mount = csi.VolumeCapability.MountVolume(mount_flags=flags, volume_mount_group=group)
    return csi.VolumeCapability(mount=mount, access_mode=access)


@dataclass
class Driver:
    """One driver process on simulated node ``node``, whose root is ``root``."""

    node: str
    root: Path
    socket: Path
    log: Path
    arguments: list[str]
    process: subprocess.Popen[bytes]
    channel: grpc.Channel

    @classmethod
    def start(
        cls,
        folder: Path,
        node: str,
        mode: str = "all",
        config: dict[str, object] | None = None,
        suffix: str = "",
        within: tuple[str, ...] = (),
    ) -> "Driver":
        root = folder / node
        root.mkdir(exist_ok=True)
        socket = root / f"csi{suffix}.sock"
        arguments = [*within, *command(), "--mode", mode, "--endpoint", f"unix://{socket}", "--node-id", node]
        if config is not None:
            file = root / f"config{suffix}.yaml"
            file.write_text(yaml.safe_dump(config))
            arguments += ["--config", str(file)]
        log = root / f"log{suffix}"
        process, channel = _launch(root, arguments, socket, log)
        return cls(node, root, socket, log, arguments, process, channel)

    def stop(self) -> int:
        """Stop it as kubelet does; return its exit code."""
        self.channel.close()
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(30)

    def kill(self) -> None:
        self.channel.close()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def restart(self) -> None:
        """Start it again with the same arguments, after ``stop`` or ``kill``."""
        self.process, self.channel = _launch(self.root, self.arguments, self.socket, self.log)

    @property
    def identity(self) -> csi_pb2_grpc.IdentityStub:
        return csi_pb2_grpc.IdentityStub(self.channel)

    @property
    def controller(self) -> csi_pb2_grpc.ControllerStub:
        return csi_pb2_grpc.ControllerStub(self.channel)

    @property
    def rpc(self) -> csi_pb2_grpc.NodeStub:
        return csi_pb2_grpc.NodeStub(self.channel)

    @property
    def pool(self) -> Path:
        return self.root / "var/lib/ub-node/pools/default"

    @property
    def kubelet(self) -> Path:
        return self.root / "kubelet"

    def create(
        self,
        name: str = "pvc-1",
        required: int = 0,
        limit: int = 0,
        mode: int = RWX,
        parameters: dict[str, str] | None = None,
    ) -> csi.Volume:
        request = csi.CreateVolumeRequest(
            name=name, volume_capabilities=[capability(mode)], parameters=parameters or {}
        )
        if required or limit:
            request.capacity_range.required_bytes = required
            request.capacity_range.limit_bytes = limit
        return self.controller.CreateVolume(request).volume

    def delete(self, volume_id: str) -> None:
        self.controller.DeleteVolume(csi.DeleteVolumeRequest(volume_id=volume_id))

    def staging(self, volume: csi.Volume) -> Path:
        return self.kubelet / "plugins" / volume.volume_id / "globalmount"

    def target(self, volume: csi.Volume, pod: str = "pod1") -> Path:
        return self.kubelet / "pods" / pod / "volumes" / volume.volume_id[:20] / "mount"

    def stage(
        self,
        volume: csi.Volume,
        mode: int = RWX,
        flags: tuple[str, ...] = (),
        *,
        use: csi.VolumeCapability | None = None,
    ) -> Path:
        """``use`` in place of ``mode`` and ``flags``: of a device, say."""
        staging = self.staging(volume)
        staging.mkdir(parents=True, exist_ok=True)
        self.rpc.NodeStageVolume(
            csi.NodeStageVolumeRequest(
                volume_id=volume.volume_id,
                staging_target_path=str(staging),
                volume_capability=use or capability(mode, flags=flags),
                volume_context=volume.volume_context,
            )
        )
        return staging

    def unstage(self, volume: csi.Volume) -> None:
        self.rpc.NodeUnstageVolume(
            csi.NodeUnstageVolumeRequest(volume_id=volume.volume_id, staging_target_path=str(self.staging(volume)))
        )

    def publish(
        self,
        volume: csi.Volume,
        pod: str = "pod1",
        mode: int = RWX,
        *,
        readonly: bool = False,
        flags: tuple[str, ...] = (),
        target: Path | None = None,
        use: csi.VolumeCapability | None = None,
    ) -> Path:
        target = target or self.target(volume, pod)
        target.parent.mkdir(parents=True, exist_ok=True)
        self.rpc.NodePublishVolume(
            csi.NodePublishVolumeRequest(
                volume_id=volume.volume_id,
                staging_target_path=str(self.staging(volume)),
                target_path=str(target),
                volume_capability=use or capability(mode, flags=flags),
                readonly=readonly,
                volume_context=volume.volume_context,
            )
        )
        return target

    def unpublish(self, volume: csi.Volume, pod: str = "pod1", target: Path | None = None) -> None:
        self.rpc.NodeUnpublishVolume(
            csi.NodeUnpublishVolumeRequest(
                volume_id=volume.volume_id, target_path=str(target or self.target(volume, pod))
            )
        )


def _launch(root: Path, arguments: list[str], socket: Path, log: Path) -> tuple[subprocess.Popen[bytes], grpc.Channel]:
    with log.open("ab") as out:
        process = subprocess.Popen(arguments, env=environment(UB_ROOT=str(root)), stdout=out, stderr=out, cwd="/")
    deadline = time.monotonic() + 60
    channel = grpc.insecure_channel(f"unix:{socket}")
    identity = csi_pb2_grpc.IdentityStub(channel)
    while True:
        try:
            identity.GetPluginInfo(csi.GetPluginInfoRequest(), timeout=1)
            return process, channel
        except grpc.RpcError:
            if process.poll() is not None or time.monotonic() > deadline:
                channel.close()
                process.kill()
                raise AssertionError(f"{arguments} did not start:\n{log.read_text()}") from None
            channel.close()
            time.sleep(0.03)
            channel = grpc.insecure_channel(f"unix:{socket}")
            identity = csi_pb2_grpc.IdentityStub(channel)


@contextmanager
def refused(code: grpc.StatusCode, *, naming: str = "") -> Iterator[None]:
    """The body is answered with ``code``, and a message that names ``naming``."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    error: Any = caught.value  # an RpcError that a stub raises is a Call too, which the types do not say
    assert error.code() is code, f"{error.code()}: {error.details()}"
    assert error.details()
    assert naming in (error.details() or ""), error.details()

"""A real kubelet on this node. Its control plane is outside: ``CLUSTER`` says where, and who we are there."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
from ubproto.pluginregistration.v1 import pluginregistration_pb2 as pb
from ubproto.pluginregistration.v1 import pluginregistration_pb2_grpc as rpc

from e2e.inside.host import ROOT
from e2e.inside.installed import systemctl
from e2e.kubernetes.api import Api

CLUSTER = Path("/run/cluster.json")  # laid here by e2e/outside/test_kubernetes.py
DRIVER = "csi-ub.unifiedbus.com"
FOLDER = Path("/var/lib/kubelet")
PROGRAM = Path("/mnt/payload/kubernetes/kubelet")
ADDRESS = "10.0.2.15"  # of the node, on QEMU's network to the machine that it runs on
CONFIGURATION = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "systemd",
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "resolvConf": "",
    # The guest's disk is as small as it can be, and its images come from no registry.
    "evictionHard": {"memory.available": "20Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    "imageGCHighThresholdPercent": 100,
}
UNIT = f"""[Unit]
Description=kubelet
DefaultDependencies=no
[Service]
ExecStart={PROGRAM} \\
  --config=/run/kubelet.json --kubeconfig=/run/kubelet.kubeconfig --node-ip={ADDRESS} --hostname-override=node0
KillMode=process
Restart=always
"""


def api() -> Api:
    """Return the cluster as its administrator sees it from here."""
    told = json.loads(CLUSTER.read_text())
    return Api(told["host"], told["port"], told["certificate"], told["token"])


class Registration(rpc.RegistrationServicer):
    """What node-driver-registrar tells kubelet: that our driver is there, and where."""

    def __init__(self) -> None:
        self.answers: list[str] = []  # "" is success

    def GetInfo(self, request: pb.InfoRequest, context: grpc.ServicerContext) -> pb.PluginInfo:
        socket = str(FOLDER / "plugins" / DRIVER / "csi.sock")
        return pb.PluginInfo(type="CSIPlugin", name=DRIVER, endpoint=socket, supported_versions=["1.0.0"])

    def NotifyRegistrationStatus(
        self, request: pb.RegistrationStatus, context: grpc.ServicerContext
    ) -> pb.RegistrationStatusResponse:
        self.answers.append("" if request.plugin_registered else request.error or "refused")
        return pb.RegistrationStatusResponse()


@contextlib.contextmanager
def registrar() -> Iterator[Registration]:
    socket = FOLDER / "plugins_registry" / f"{DRIVER}-reg.sock"
    socket.parent.mkdir(parents=True, exist_ok=True)
    server, servicer = grpc.server(futures.ThreadPoolExecutor(2)), Registration()
    rpc.add_RegistrationServicer_to_server(servicer, server)
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    try:
        yield servicer
    finally:
        server.stop(0).wait()


@contextlib.contextmanager
def meeting_places() -> Iterator[None]:
    """Let the agent, whose root is the simulated host, meet the real kubelet and the real runtime in their folders."""
    with contextlib.ExitStack() as mounted:
        for real, seen in ((FOLDER, ROOT / "var/lib/kubelet"), (Path("/run/cdi"), ROOT / "var/run/cdi")):
            for folder in (real, seen):
                folder.mkdir(parents=True, exist_ok=True)
            subprocess.run(["mount", "--bind", real, seen], check=True)
            mounted.callback(_unmount, seen)
        yield


def _unmount(path: Path) -> None:
    subprocess.run(["umount", "--lazy", path], check=True)


@contextlib.contextmanager
def kubelet() -> Iterator[None]:
    """Run kubelet as a unit of systemd, as a node does."""
    Path("/run/kubelet.json").write_text(json.dumps(CONFIGURATION))
    Path("/run/kubelet.kubeconfig").write_text(json.dumps(json.loads(CLUSTER.read_text())["kubeconfig"]))
    Path("/run/systemd/system/kubelet.service").write_text(UNIT)
    systemctl("daemon-reload")
    systemctl("start", "kubelet")
    try:
        yield
    finally:
        systemctl("stop", "kubelet")

"""What a kubelet does with containerd, over the same socket: pods, containers, commands in them."""

import json
import os
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from ubproto.runtime.v1 import runtime_pb2 as pb
from ubproto.runtime.v1 import runtime_pb2_grpc as rpc

SOCKET = "unix:///run/containerd/containerd.sock"
IMAGES = Path("/usr/lib/ub-e2e/images")
IMAGE = "localhost/busybox:1"
CALL_S = 600.0  # an emulated machine that others use too is slow; a call that takes longer hangs


@dataclass(frozen=True)
class Resources:
    """The CPU and memory part of a pod spec, as the kubelet hands it down; 0 means not set."""

    cpu_request_m: int = 0
    cpu_limit_m: int = 0
    memory_limit: int = 0

    def message(self) -> pb.LinuxContainerResources:
        return pb.LinuxContainerResources(
            cpu_period=100_000,
            cpu_quota=self.cpu_limit_m * 100,
            cpu_shares=max(2, self.cpu_request_m * 1024 // 1000),
            memory_limit_in_bytes=self.memory_limit,
            oom_score_adj=1000 if not self.cpu_request_m else -997 if self.guaranteed else 500,
        )

    @property
    def guaranteed(self) -> bool:
        return bool(self.cpu_request_m and self.cpu_request_m == self.cpu_limit_m and self.memory_limit)

    @property
    def qos_class(self) -> str:
        return "guaranteed" if self.guaranteed else "burstable" if self.cpu_request_m else "besteffort"


@dataclass(frozen=True)
class Pod:
    """A pod sandbox that runs."""

    id: str
    config: pb.PodSandboxConfig
    ip: str
    pid: int
    netns: Path

    @property
    def name(self) -> str:
        return self.config.metadata.name


@dataclass(frozen=True)
class Container:
    """A container that runs; ``cgroup`` is its folder in the real cgroup tree."""

    id: str
    pid: int
    cgroup: Path

    def knob(self, name: str) -> str:
        """Return the text of one of its cgroup files."""
        return (self.cgroup / name).read_text().strip()


@dataclass
class Runtime:
    """A connection to the runtime; whatever was created through it is removed by ``remove_all``."""

    stub: "rpc.RuntimeServiceStub" = field(
        default_factory=lambda: rpc.RuntimeServiceStub(grpc.insecure_channel(SOCKET))
    )
    pods: dict[str, Pod] = field(default_factory=dict)

    def wait_until_ready(self) -> None:
        """Wait for the socket, then for the runtime, which says "not initialized yet" for a while after a boot."""
        deadline = time.monotonic() + CALL_S
        while True:
            try:
                self.stub.Version(pb.VersionRequest(), timeout=CALL_S, wait_for_ready=True)
            except grpc.RpcError as error:
                if "not initialized" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return

    def conditions(self) -> dict[str, bool]:
        status = self.stub.Status(pb.StatusRequest(), timeout=CALL_S, wait_for_ready=True).status
        return {condition.type: condition.status for condition in status.conditions}

    def run_pod(
        self,
        name: str,
        *,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        resources: Resources | None = None,
        host_ports: Mapping[int, int] | None = None,
        host_network: bool = False,
        privileged: bool = False,
        cgroup_parent: str = "",
    ) -> Pod:
        """Create a pod sandbox in the cgroup that the kubelet would choose.

        Args:
            host_ports: port of the node -> port of the pod.
            host_network: share the node's network: no CNI plugin is called.
            privileged: its containers may all, see the node's processes, and give their mounts to the node.
            cgroup_parent: another cgroup, as who has no kubelet would choose.
        """
        uid = str(uuid.uuid4())
        config = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=name, uid=uid, namespace="default"),
            hostname="" if host_network else name,
            log_directory=f"/var/log/pods/default_{name}_{uid}",
            labels={"io.kubernetes.pod.name": name, "io.kubernetes.pod.uid": uid, **(labels or {})},
            annotations=dict(annotations or {}),
            port_mappings=[
                pb.PortMapping(host_port=host, container_port=inner) for host, inner in (host_ports or {}).items()
            ],
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=cgroup_parent or _pod_slice((resources or Resources()).qos_class, uid),
                security_context=pb.LinuxSandboxSecurityContext(
                    privileged=privileged,
                    namespace_options=pb.NamespaceOption(
                        network=pb.NODE if host_network else pb.POD, pid=pb.NODE if privileged else pb.POD
                    ),
                ),
            ),
        )
        ident = self.stub.RunPodSandbox(
            pb.RunPodSandboxRequest(config=config), timeout=CALL_S, wait_for_ready=True
        ).pod_sandbox_id
        pod = self.pods[ident] = self._inspect(ident, config)
        return pod

    def _inspect(self, ident: str, config: pb.PodSandboxConfig) -> Pod:
        answer = self.stub.PodSandboxStatus(pb.PodSandboxStatusRequest(pod_sandbox_id=ident, verbose=True), timeout=60)
        info = json.loads(answer.info["info"])
        spaces = info["runtimeSpec"]["linux"]["namespaces"]
        netns = next((space["path"] for space in spaces if space["type"] == "network"), "/proc/1/ns/net")
        return Pod(ident, config, answer.status.network.ip, int(info["pid"]), Path(netns))

    def run_container(
        self,
        pod: Pod,
        *command: str,
        name: str = "main",
        mounts: Mapping[Path, str] | None = None,
        resources: Resources | None = None,
        cdi_devices: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> Container:
        """Create and start a container; without a command it sleeps.

        Args:
            mounts: path on the node -> path in the container.
        """
        security = pod.config.linux.security_context
        propagation = pb.PROPAGATION_BIDIRECTIONAL if security.privileged else pb.PROPAGATION_HOST_TO_CONTAINER
        config = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name=name),
            image=pb.ImageSpec(image=IMAGE),
            command=command or ("sleep", "infinity"),
            envs=[pb.KeyValue(key=key, value=value) for key, value in (env or {}).items()],
            log_path=f"{name}.log",
            mounts=[
                pb.Mount(host_path=str(host), container_path=inner, propagation=propagation)
                for host, inner in (mounts or {}).items()
            ],
            labels={**pod.config.labels, "io.kubernetes.container.name": name},
            linux=pb.LinuxContainerConfig(
                resources=(resources or Resources()).message(),
                security_context=pb.LinuxContainerSecurityContext(
                    privileged=security.privileged, namespace_options=security.namespace_options
                ),
            ),
            CDI_devices=[pb.CDIDevice(name=device) for device in cdi_devices],
        )
        request = pb.CreateContainerRequest(pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config)
        ident = self.stub.CreateContainer(request, timeout=CALL_S).container_id
        self.stub.StartContainer(pb.StartContainerRequest(container_id=ident), timeout=CALL_S)
        return self.container(ident)

    def container(self, ident: str) -> Container:
        """Return a container that runs."""
        answer = self.stub.ContainerStatus(pb.ContainerStatusRequest(container_id=ident, verbose=True), timeout=CALL_S)
        pid = int(json.loads(answer.info["info"])["pid"])
        path = Path(f"/proc/{pid}/cgroup").read_text().strip().removeprefix("0::/")
        return Container(ident, pid, Path("/sys/fs/cgroup") / path)

    def pod_of_kubelet(self, uid: str) -> Pod:
        """Return a pod that a kubelet started, and will remove."""
        every = self.stub.ListPodSandbox(pb.ListPodSandboxRequest(), timeout=CALL_S).items
        (found,) = (one for one in every if one.metadata.uid == uid)
        return self._inspect(found.id, pb.PodSandboxConfig(metadata=found.metadata))

    def execute(self, container: Container, *command: str) -> tuple[int, str]:
        """Run a command in a container; return its exit code and all it printed."""
        request = pb.ExecSyncRequest(container_id=container.id, cmd=command, timeout=60)
        answer = self.stub.ExecSync(request, timeout=CALL_S)
        return answer.exit_code, (answer.stdout + answer.stderr).decode()

    def stop_pod(self, pod: Pod) -> None:
        self.stub.StopPodSandbox(pb.StopPodSandboxRequest(pod_sandbox_id=pod.id), timeout=CALL_S, wait_for_ready=True)

    def remove_pod(self, pod: Pod) -> None:
        """Stop and remove, as the kubelet does; twice is allowed."""
        self.stop_pod(pod)
        self.stub.RemovePodSandbox(pb.RemovePodSandboxRequest(pod_sandbox_id=pod.id), timeout=CALL_S)
        self.pods.pop(pod.id, None)

    def forget_pod(self, ident: str) -> None:
        """Stop and remove a sandbox of which only the id is known, such as one that a reboot killed."""
        self.stub.StopPodSandbox(pb.StopPodSandboxRequest(pod_sandbox_id=ident), timeout=CALL_S)
        self.stub.RemovePodSandbox(pb.RemovePodSandboxRequest(pod_sandbox_id=ident), timeout=CALL_S)

    def remove_all(self) -> None:
        """Remove all pods at once, as a drain does."""
        with ThreadPoolExecutor(max_workers=8) as workers:
            list(workers.map(self.remove_pod, list(self.pods.values())))


def import_images() -> None:
    """Give containerd the images that were made with the guest; there is no registry."""
    for archive in sorted(IMAGES.glob("*.tar")):
        subprocess.run(["ctr", "--namespace=k8s.io", "images", "import", str(archive)], check=True, capture_output=True)
    os.sync()


def _pod_slice(qos_class: str, uid: str) -> str:
    """Return the pod's cgroup as the kubelet names it for the systemd driver."""
    name = uid.replace("-", "_")
    return f"kubepods-pod{name}.slice" if qos_class == "guaranteed" else f"kubepods-{qos_class}-pod{name}.slice"

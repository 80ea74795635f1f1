"""A node with a runtime of ours and the real plugin process between them.

The process is ``python -m nri_qos``, or ``$UB_BIN_DIR/nri-qos`` where that is set.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ubproto.nri.v1alpha1 import nri_pb2

from nri_qos.model import Machine
from tests.nri_qos import nodes
from tests.nri_qos.cgroups import Load, Tree
from ubsim.runtime import Runtime

TOP = Path(__file__).parents[2]


def command() -> list[str]:
    folder = os.environ.get("UB_BIN_DIR")
    return [str(Path(folder, "nri-qos"))] if folder else [sys.executable, "-m", "nri_qos"]


def environment(root: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "UB_ROOT": str(root), "PYTHONPATH": f"{TOP}:{TOP / 'proto'}"}


class Plugin:
    """The plugin process of one node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "nri-qos.log"
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self._processes[-1]

    def start(self, *arguments: str, config: dict[str, Any] | None = None, **extra: Any) -> None:
        """Start it; ``extra`` goes to Popen. Without ``config`` its loop does not come round during a test."""
        if "--config" not in arguments and config != {}:
            path = self.root / "nri-qos.yaml"
            path.write_text(yaml.safe_dump({"period": 60} if config is None else config))
            arguments = (*arguments, "--config", str(path))
        extra.setdefault("env", environment(self.root))
        with self.log.open("ab") as log:
            self._processes.append(subprocess.Popen([*command(), *arguments], stderr=log, cwd=TOP, **extra))

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=60)

    def lines(self, message: str) -> list[dict[str, Any]]:
        """Return the log lines with ``message``."""
        logged = (json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{"))
        return [line for line in logged if line["message"] == message]

    def wait_for(self, message: str, count: int = 1, timeout_s: float = 60) -> dict[str, Any]:
        until(lambda: len(self.lines(message)) >= count, timeout_s, lambda: self.log.read_text())
        return self.lines(message)[count - 1]

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def until(holds: Callable[[], bool], timeout_s: float = 60, tell: Callable[[], str] = lambda: "") -> None:
    """Wait until something holds."""
    limit = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < limit, f"not within {timeout_s} s\n{tell()}"
        time.sleep(0.02)


@pytest.fixture
def machine() -> Machine:
    """Eight CPUs on two nodes, and a borrowed node."""
    return nodes.machine("0-3", "4-7", remote=1)


@pytest.fixture
def root(tmp_path: Path, machine: Machine) -> Path:
    nodes.write(machine, tmp_path)
    return tmp_path


@pytest.fixture
def tree(root: Path) -> Tree:
    return Tree(root)


@pytest.fixture
def load(tree: Tree) -> Iterator[Load]:
    running = Load(tree)
    yield running
    running.end()


@pytest.fixture
def runtime(root: Path) -> Iterator[Runtime]:
    with Runtime(root / "var/run/nri/nri.sock", timeout_s=30) as listening:
        yield listening


@pytest.fixture
def plugin(root: Path) -> Iterator[Plugin]:
    """The plugin, not started yet."""
    process = Plugin(root)
    yield process
    process.end()


def pod(name: str, qos: str | None = None, *, guaranteed: bool = False, **annotations: str) -> nri_pb2.PodSandbox:
    uid = f"uid-{name}"
    level = "" if guaranteed else "/kubepods-besteffort.slice"
    slice_ = f"kubepods-pod{uid}.slice" if guaranteed else f"kubepods-besteffort-pod{uid}.slice"
    said = {key.replace("__", "/"): value for key, value in annotations.items()}
    if qos is not None:
        said["qos.unifiedbus.com/class"] = qos
    linux = nri_pb2.LinuxPodSandbox(cgroup_parent=f"/kubepods.slice{level}/{slice_}")
    return nri_pb2.PodSandbox(id=f"sandbox-{name}", name=name, uid=uid, namespace="shop", annotations=said, linux=linux)


def container(pod: nri_pb2.PodSandbox, name: str = "app", cpus: float = 0, number: int = 0) -> nri_pb2.Container:
    """Return a container as kubelet asks for it: request and limit ``cpus`` CPUs, none if 0."""
    made = nri_pb2.Container(id=f"{pod.name}-{name}-{number}", pod_sandbox_id=pod.id, name=name)
    made.linux.resources.cpu.shares.value = int(cpus * 1024) or 2
    if cpus:
        made.linux.resources.cpu.quota.value = int(cpus * 100_000)
        made.linux.resources.cpu.period.value = 100_000
    made.linux.cgroups_path = f"{pod.linux.cgroup_parent.rpartition('/')[2]}:cri-containerd:{made.id}"
    return made


def cpu(made: nri_pb2.ContainerAdjustment | nri_pb2.ContainerUpdate) -> tuple[int, str, str]:
    """Return (shares, cpus, mems) of an answer; zero and "" are not set."""
    given = made.linux.resources.cpu
    return given.shares.value, given.cpus, given.mems


def start_pod(
    runtime: Runtime,
    tree: Tree,
    name: str,
    qos: str | None,
    cpus: float = 0,
    *,
    guaranteed: bool = False,
    files: Mapping[str, str] | None = None,
) -> tuple[str, str]:
    """Run a pod with one container; return the folders of both. ``files`` are those of the pod's cgroup."""
    return run(runtime, tree, pod(name, qos, guaranteed=guaranteed), cpus, files=files)


def run(
    runtime: Runtime, tree: Tree, made: nri_pb2.PodSandbox, cpus: float = 0, *, files: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """Run this pod, as ``start_pod`` does."""
    folder = tree.pod(made, **(files or {}))
    runtime.run_pod(made)
    asked = container(made, cpus=cpus)
    inner = tree.container(asked, runtime.create(asked))
    runtime.start(asked.id)
    return folder, inner


def run_before(runtime: Runtime, tree: Tree, made: nri_pb2.PodSandbox, asked: nri_pb2.Container) -> tuple[str, str]:
    """Let a pod and its container run since before the plugin came; return the folders of both."""
    asked.state = nri_pb2.CONTAINER_RUNNING
    runtime.pods[made.id], runtime.containers[asked.id] = made, asked
    return tree.pod(made), tree.container(asked)


def come_round(tree: Tree, offline: str) -> None:
    """Wait until the loop has gone round: it puts right what somebody else wrote to the pod ``offline``, twice."""
    for _ in range(2):
        tree.write(offline, "cpu.weight", "9")
        until(lambda: tree.read(offline, "cpu.weight") == "1")


def restore(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command(), "--restore"], env=environment(root), cwd=TOP, capture_output=True, text=True)

"""A cgroup v2 tree of plain files below a root, with the counters and the load that a test wants."""

import re
import shutil
import threading
import time
from pathlib import Path

from ubproto.nri.v1alpha1 import nri_pb2

from nri_qos import paths
from tests.nri_qos.nodes import put

DEFAULTS = {
    "cpu.weight": "100",
    "cpu.idle": "0",
    "cpu.max": "max 100000",
    "cpu.max.burst": "0",
    "cpuset.cpus": "",
    "cpuset.mems": "",
    "memory.min": "0",
    "memory.low": "0",
    "memory.high": "max",
    "memory.max": "max",
    "memory.current": "0",
    "memory.swap.max": "max",
    "memory.oom.group": "0",
    "memory.reclaim": "",
    "io.weight": "default 100",
    "io.max": "",
    "io.latency": "",
    "rdma.max": "",
    "cgroup.kill": "",
    "pids.max": "max",
}


class Tree:
    """The hierarchy of one node. Nothing happens in it by itself: ``spend`` is the time that passes."""

    def __init__(self, root: Path) -> None:
        self.root = root / "sys/fs/cgroup"
        self._lock = threading.Lock()
        self.stat("", 0)

    def add(self, folder: str, **files: str) -> None:
        """Make a cgroup, all at once; ``files`` (with __ for the dot) say something else than a new cgroup does."""
        made = self.root.parent / "new-cgroup"
        made.mkdir()
        for name, text in {**DEFAULTS, **{key.replace("__", "."): text for key, text in files.items()}}.items():
            (made / name).write_text(text + "\n")
        _count(made, 0)
        path = self.root / folder
        path.parent.mkdir(parents=True, exist_ok=True)
        made.rename(path)

    def remove(self, folder: str) -> None:
        """Remove a cgroup and all in it, at once."""
        gone = self.root.parent / "old-cgroup"
        (self.root / folder).rename(gone)
        shutil.rmtree(gone)

    def pod(self, pod: nri_pb2.PodSandbox, **files: str) -> str:
        folder = paths.of_pod(pod.linux.cgroup_parent)
        assert folder is not None
        self.add(folder, **files)
        return folder

    def container(self, container: nri_pb2.Container, adjust: nri_pb2.ContainerAdjustment | None = None) -> str:
        """Make the cgroup of a container, as runc would with the adjustment."""
        folder = paths.of_container(container.linux.cgroups_path)
        assert folder is not None
        cpu = adjust.linux.resources.cpu if adjust is not None else nri_pb2.LinuxCPU()
        shares = cpu.shares.value or container.linux.resources.cpu.shares.value
        weight = str(max(1, 1 + (shares - 2) * 9999 // 262142)) if shares else "100"
        self.add(folder, cpu__weight=weight, cpuset__cpus=cpu.cpus, cpuset__mems=cpu.mems)
        return folder

    def stat(self, folder: str, usage: int, *, throttles: int = 0, throttled: int = 0, waited: int = 0) -> None:
        """Set the counters of a cgroup, in microseconds."""
        _count(self.root / folder, usage, throttles, throttled, waited if folder else None)

    def spend(self, folder: str, micros: int, *, throttles: int = 0, waited: int = 0) -> None:
        """Let a cgroup use CPU time, throttled and waiting so often and so long."""
        with self._lock:
            self._spend(folder, micros, throttles, waited)

    def _spend(self, folder: str, micros: int, throttles: int, waited: int) -> None:
        now = self.read(folder, "cpu.stat")
        before = int(_number(r"usage_usec (\d+)", now))
        throttled = int(_number(r"nr_throttled (\d+)", now))
        total = int(_number(r"some .*total=(\d+)", self.read(folder, "cpu.pressure"))) if folder else 0
        self.stat(folder, before + micros, throttles=throttled + throttles, waited=total + waited)

    def read(self, folder: str, file: str) -> str:
        return (self.root / folder / file).read_text().strip()

    def write(self, folder: str, file: str, text: str) -> None:
        put(self.root / folder / file, text)

    def everything(self) -> dict[str, str]:
        """Return what every file says, but for the counters."""
        return {
            str(path.relative_to(self.root)): path.read_text().strip()
            for path in sorted(self.root.rglob("*"))
            if not path.name.startswith((".", "cpu.stat", "cpu.pressure")) and path.is_file()
        }


class Load:
    """CPU time that cgroups use, by the clock."""

    def __init__(self, tree: Tree) -> None:
        self.cpus: dict[str, float] = {}
        self._tree = tree
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._is_ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        last = time.monotonic()
        while not self._is_ending.wait(0.02):
            now = time.monotonic()
            for folder, cpus in list(self.cpus.items()):
                self._tree.spend(folder, int(cpus * (now - last) * 1e6))
            last = now


def _count(path: Path, usage: int, throttles: int = 0, throttled: int = 0, waited: int | None = 0) -> None:
    put(
        path / "cpu.stat",
        f"usage_usec {usage}\nuser_usec {usage}\nsystem_usec 0\nnr_periods 0\nnr_throttled {throttles}\n"
        f"throttled_usec {throttled}",
    )
    if waited is not None:
        pressure = f"avg10=0.00 avg60=0.00 avg300=0.00 total={waited}"
        put(path / "cpu.pressure", f"some {pressure}\nfull {pressure}")


def _number(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, text
    return found.group(1)

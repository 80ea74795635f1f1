"""``make bench-csi``: calls of the driver against the mount program, bytes through volumes and models against a disk.

usage: python -m bench.csi [--calls N] [--megabytes M] [--model-megabytes M]

As root. Prints three tables; the last line is ``ratio`` of the median NodePublish to what the Go reference driver
spends on it at least: one run of mount(8), measured in the same run. What the kernel takes for the same steps without a
driver is measured beside it, as is the load of the machine. All figures are of this machine, with nodes simulated by
network namespaces: they are not UB figures.
"""

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import grpc
from ubproto.csi.v1 import csi_pb2 as csi

from bench.csi import models
from csi_ub.mounter import Mounter
from csi_ub.steps import Bind
from tests.csi_ub import netns
from tests.csi_ub.driver import Driver
from tests.csi_ub.pools import unmount_below
from ubhost.mounttable import Attribute, Origin

MiB = 1 << 20
_KINDS: tuple[tuple[str, str, int], ...] = (  # and the node that uses it: the owner, or another
    ("strong", "bind", 0),
    ("strong", "glusterfs", 1),
    ("eventual", "syncthing", 1),
)
_NEEDS = {"glusterfs": "glusterfsd", "syncthing": "syncthing"}


class Times:
    """Durations by name, in seconds."""

    def __init__(self) -> None:
        self.of: dict[str, list[float]] = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.of.setdefault(name, []).append(time.perf_counter() - started)

    def median(self, name: str) -> float:
        return statistics.median(self.of[name])

    def line(self, name: str) -> str:
        sample = sorted(self.of[name])
        return (
            f"{name:<28} {len(sample):>6} {self.median(name) * 1e3:>9.2f} {sample[int(len(sample) * 0.99)] * 1e3:>9.2f}"
        )


def calls(folder: Path, count: int) -> Times:
    """Measure the life of a volume over the socket, and bind mounts by the mount program beside it."""
    times, driver = Times(), Driver.start(folder, "node0")
    source, target = folder / "source", folder / "target"
    source.mkdir()
    target.mkdir()
    try:
        for number in range(count):
            with times.measure("Probe"):
                driver.identity.Probe(csi.ProbeRequest())
            with times.measure("CreateVolume"):
                volume = driver.create(f"pvc-{number}")
            with times.measure("NodeStageVolume"):
                driver.stage(volume)
            with times.measure("NodePublishVolume"):
                driver.publish(volume)
            with times.measure("NodePublishVolume, again"):
                path = driver.publish(volume)
            request = csi.NodeGetVolumeStatsRequest(volume_id=volume.volume_id, volume_path=str(path))
            with times.measure("NodeGetVolumeStats"):
                driver.rpc.NodeGetVolumeStats(request)
            with times.measure("NodeUnpublishVolume"):
                driver.unpublish(volume)
            with times.measure("NodeUnstageVolume"):
                driver.unstage(volume)
            with times.measure("DeleteVolume"):
                driver.delete(volume.volume_id)
            with times.measure("mount(8) and umount(8)"):
                with times.measure("mount(8) --bind"):
                    subprocess.run(["mount", "--bind", source, target], check=True)
                subprocess.run(["umount", target], check=True)
            _bare(times, source, folder / "bare")
    finally:
        driver.stop()
    return times


def _bare(times: Times, source: Path, target: Path) -> None:
    """Measure what the kernel takes for a publication: the calls that the driver makes, and no driver."""
    folder = os.open(source, os.O_PATH)
    step = Bind(str(target), Origin("", ""), Attribute.NOSUID | Attribute.NODEV)
    with times.measure("kernel: mkdir, bind"):
        target.mkdir()
        Mounter(folder).do(step)
    with times.measure("kernel: umount, rmdir"):
        Mounter().do(step.undo())
        target.rmdir()
    os.close(folder)


def throughput(path: Path, megabytes: int) -> dict[str, float]:
    """Return MB/s of writing with one fsync and of reading, and operations a second on small blocks."""
    file, block, found = path / "bench", os.urandom(MiB), {}

    def rate(amount: float, work: Callable[[], None]) -> float:
        started = time.perf_counter()
        work()
        return amount / (time.perf_counter() - started)

    def write() -> None:
        with file.open("wb", buffering=0) as out:
            for _ in range(megabytes):
                out.write(block)
            os.fsync(out.fileno())

    def read() -> None:
        with file.open("rb", buffering=0) as data:
            os.posix_fadvise(data.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while data.read(MiB):
                pass

    def small() -> None:
        with file.open("r+b", buffering=0) as data:
            for number in range(1000):
                os.pwrite(data.fileno(), block[:4096], number * 4096)
                os.pread(data.fileno(), 4096, number * 4096)

    found["write MB/s"] = rate(megabytes * MiB / 1e6, write)
    found["read MB/s"] = rate(megabytes * MiB / 1e6, read)
    found["4 KiB op/s"] = rate(2000, small)
    file.unlink()
    return found


def volumes(folder: Path, megabytes: int) -> dict[str, dict[str, float]]:
    """Measure the raw disk, a volume on its only node, and volumes of another node."""
    found = {}
    (folder / "raw").mkdir()
    found["raw disk"] = throughput(folder / "raw", megabytes)
    with ExitStack() as stack:
        addresses = stack.enter_context(netns.network(["node0", "node1"]))
        peers = [{"node": name, "address": address} for name, address in addresses.items()]
        nodes = [
            Driver.start(folder, name, config={"peers": peers}, within=tuple(netns.inside(name))) for name in addresses
        ]
        stack.callback(_end_syncthing, nodes)
        for node in nodes:
            stack.callback(node.stop)
        for consistency, engine, place in _KINDS:
            if not shutil.which(_NEEDS.get(engine, "true")):
                continue
            parameters = {"engine": engine, "consistency": consistency}
            volume = nodes[0].create(f"bench-{engine}", parameters=parameters)
            _stage(nodes[place], volume)
            found[f"{consistency}, engine {engine}"] = throughput(nodes[place].publish(volume), megabytes)
            nodes[place].unpublish(volume)
            nodes[place].unstage(volume)
            if consistency == "strong":
                nodes[0].delete(volume.volume_id)
    return found


def _stage(node: Driver, volume: csi.Volume) -> None:
    for _ in range(5):
        with suppress(grpc.RpcError):  # the first copy of an eventual volume takes a while; a cluster asks again
            node.stage(volume)
            return
    node.stage(volume)


def _end_syncthing(nodes: list[Driver]) -> None:
    """End the daemons, which outlive a driver on purpose."""
    for node in nodes:
        with suppress(OSError):
            os.kill(int((node.root / "run/ub-node/syncthing/pid").read_text()), signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.csi", description=__doc__)
    parser.add_argument("--calls", type=int, default=300, help="volumes to take through their life (300)")
    parser.add_argument("--megabytes", type=int, default=256, help="size of the file read and written (256)")
    parser.add_argument("--model-megabytes", type=int, default=2048, help="size of the model (2048)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ub-bench-csi-") as name:
        folder = Path(name)
        try:
            times, load = calls(folder, arguments.calls), os.getloadavg()[0]
            rates = volumes(folder, arguments.megabytes)
            (folder / "models").mkdir()
            model = models.measure(folder / "models", arguments.model_megabytes)
        finally:
            unmount_below(folder)
    print(f"load {load:.1f} on {os.cpu_count()} CPUs")
    print(f"{'call (stand-in node)':<28} {'calls':>6} {'p50 ms':>9} {'p99 ms':>9}")
    for name in times.of:
        print(times.line(name))
    raw = rates["raw disk"]
    print(f"\n{'volume (stand-in nodes)':<28} " + " ".join(f"{column:>20}" for column in raw))
    for name, row in rates.items():
        print(f"{name:<28} " + " ".join(f"{row[each]:>12.0f} ({row[each] / raw[each]:4.2f})" for each in raw))
    print("", *model.lines(), sep="\n")
    print(f"\nratio {times.median('NodePublishVolume') / times.median('mount(8) --bind'):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

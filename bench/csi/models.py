"""What a model costs its readers: the page cache, a switch under a running reader, a version that differs little."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from csi_ub.models import manifest
from csi_ub.models.store import ModelStore
from tests.csi_ub.driver import REPO, ROX, Driver, environment

MiB = 1 << 20
_READER = """
import json, os, sys, time
until, last = time.monotonic() + float(sys.argv[2]), None
while time.monotonic() < until:
    name = open(sys.argv[1] + "/current/name").read()
    if name != last:
        last = name
        print(json.dumps([name, time.monotonic()]), flush=True)
"""


@dataclass(frozen=True)
class Found:
    """Seconds, but for ``new_share``: the share of bytes copied for a version of which one percent is new."""

    size: int
    raw_warm: float
    pod_warm: float
    switches: list[float]
    new_share: float
    push: float

    def lines(self) -> list[str]:
        gigabytes, switches, ratio = self.size / (1 << 30), sorted(self.switches), self.pod_warm / self.raw_warm
        return [
            f"{'model of ' + format(gigabytes, '.1f') + ' GiB (stand-in node)':<44} {'value':>12}",
            f"{'raw local file, read warm':<44} {self.raw_warm:>10.3f} s",
            f"{'second pod of the node, read warm':<44} {self.pod_warm:>10.3f} s  ({ratio:.2f})",
            f"{'switch until a running reader sees it, p50':<44} {statistics.median(switches) * 1e3:>9.1f} ms",
            f"{f'switch, worst of {len(switches)}':<44} {switches[-1] * 1e3:>9.1f} ms",
            f"{'push of a version that differs by 1 %: copied':<44} {self.new_share:>11.1%}",
            f"{'push of a version that differs by 1 %':<44} {self.push:>10.1f} s",
        ]


def measure(folder: Path, megabytes: int) -> Found:
    """Push a model of that size, and read it as the second pod of a node."""
    source = folder / "source"
    source.mkdir()
    _weights(source / "model.safetensors", megabytes)
    (source / "name").write_text("first")
    driver = Driver.start(folder, "node0")
    try:
        volume = driver.create("llm", mode=ROX, parameters={"type": "model"})
        store = ModelStore(driver.pool / "volumes" / volume.volume_id / "share")
        first = store.switch(store.push(source, manifest.read(source)).id)
        driver.stage(volume, ROX)
        pods = [driver.publish(volume, pod, mode=ROX) for pod in ("pod1", "pod2")]
        _read(pods[0] / "current/model.safetensors")
        raw, pod = _alternate(
            lambda: _read(source / "model.safetensors"), lambda: _read(pods[1] / "current/model.safetensors")
        )
        _change(source, megabytes)
        started = time.monotonic()
        second = store.push(source, manifest.read(source))
        took = time.monotonic() - started
        switches = _switches(store, pods[1], {first: "first", second.id: "second"})
    finally:
        driver.stop()
    return Found(megabytes * MiB, raw, pod, switches, second.moved / second.size, took)


def _weights(path: Path, megabytes: int) -> None:
    block = bytearray(os.urandom(MiB))
    with path.open("wb", buffering=0) as out:
        for number in range(megabytes):
            block[:8] = number.to_bytes(8, "little")  # no chunk is like another
            out.write(block)


def _change(source: Path, megabytes: int) -> None:
    (source / "name").write_text("second")
    with (source / "model.safetensors").open("r+b", buffering=0) as out:
        out.seek(megabytes // 2 * MiB)
        out.write(os.urandom(megabytes * MiB // 100))


def _read(path: Path) -> None:
    buffer = bytearray(MiB)
    with path.open("rb", buffering=0) as data:
        while data.readinto(buffer):
            pass


def _alternate(one: Callable[[], None], other: Callable[[], None], times: int = 7) -> tuple[float, float]:
    """Return the medians of both, measured in turn: what else the machine does then hits both alike."""
    took: tuple[list[float], list[float]] = ([], [])
    one()
    other()
    for _ in range(times):
        for sample, work in zip(took, (one, other), strict=True):
            started = time.perf_counter()
            work()
            sample.append(time.perf_counter() - started)
    return statistics.median(took[0]), statistics.median(took[1])


def _switches(store: ModelStore, pod: Path, names: dict[str, str], times: int = 100) -> list[float]:
    """Switch under a reader in a process of its own; return the seconds from the call until it saw each."""
    reader = subprocess.Popen(
        [sys.executable, "-c", _READER, str(pod), "3600"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPO,
        env=environment(),
    )
    assert reader.stdout
    versions, took = list(names), []
    try:
        reader.stdout.readline()
        for number in range(1, times + 1):
            version = versions[number % 2]
            started = time.monotonic()
            store.switch(version)
            name, seen = json.loads(reader.stdout.readline())
            assert name == names[version]
            took.append(seen - started)
    finally:
        reader.kill()
        reader.wait()
    return took

"""What is done to a node in a drill. Each disturbs it for so many seconds and tells how often it did what."""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.inside.installed import UNITS, main_pid, newer_bundle, systemctl, ubnode
from e2e.inside.programs import BUNDLE, mount_points, wait_until

if TYPE_CHECKING:
    from e2e.inside.drill import Drill

OLDER = Path("/mnt/payload/ub-node-before")  # a real older release, if the harness was given one
SETTLE_S = 5.0
Counts = Counter[str]


def older_release() -> Path:
    """Return the bundle that a drill installs first."""
    return OLDER if OLDER.exists() else BUNDLE


def newer_release() -> Path:
    """Return the bundle that it upgrades to: the one under test, or a copy that calls itself another version."""
    return BUNDLE if OLDER.exists() else newer_bundle(Path("/var/tmp/newer"))


def upgrade(seconds: float, drill: "Drill") -> Counts:
    """To the next release, back, and so on."""
    counts: Counts = Counter()
    releases = (newer_release(), older_release())
    for number, _ in enumerate(every(SETTLE_S, seconds)):
        release = releases[number % 2]
        ubnode("upgrade", "--from", str(release), bundle=release)
        version = (release / "_internal" / "VERSION").read_text().strip()
        wait_until(partial(all_run, version), f"all units run {version}")
        counts["upgrades"] += 1
    return counts


def all_run(version: str) -> bool:
    try:
        programs = [Path(f"/proc/{main_pid(unit)}/exe").readlink() for unit in UNITS]
    except OSError:  # between two processes
        return False
    return all(program.is_relative_to(f"/opt/ub-node/{version}") for program in programs)


def all_are_active() -> bool:
    return systemctl("is-active", *UNITS).split() == ["active"] * len(UNITS)


def kills(seconds: float, drill: "Drill") -> Counts:
    """SIGKILL to a process of ours, whichever, every few seconds."""
    counts: Counts = Counter()
    for _ in every(1.0, seconds, spread_s=3.0):
        unit = random.choice(UNITS)
        if pid := main_pid(unit):
            os.kill(pid, signal.SIGKILL)
            counts[f"{unit} killed"] += 1
    wait_until(all_are_active, "all units are back")
    return counts


def containerd(seconds: float, drill: "Drill") -> Counts:
    counts: Counts = Counter()
    for _ in every(SETTLE_S, seconds):
        subprocess.run(["systemctl", "restart", "containerd"], check=True)
        drill.runtime.wait_until_ready()
        counts["containerd restarted"] += 1
    return counts


def sabotage(seconds: float, drill: "Drill") -> Counts:
    """The negative control: take from the pods what the drill watches, which it must see."""
    subprocess.run(["systemctl", "stop", "nri-qos"], check=True)  # or it would put its weights back
    for weight in Path("/sys/fs/cgroup").glob("kubepods.slice/**/cri-containerd-*.scope/cpu.weight"):
        weight.write_text("77")
    targets = [point for point in mount_points() if point.startswith("/var/lib/kubelet/pods/")]
    for target in targets:
        subprocess.run(["umount", "--lazy", target], check=True)
    for pid in {pod.pid for pod in drill.runtime.pods.values()}:
        subprocess.run(
            ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "link", "set", "ub0", "name", "gone"], check=False
        )
    wait_until(lambda: all(drill.tally.lost.values()), "the drill sees that all is lost", 120)
    subprocess.run(["systemctl", "start", "nri-qos"], check=True)
    return Counter(sabotaged=len(targets))


def every(pause_s: float, seconds: float, *, spread_s: float = 0) -> Iterator[None]:
    """Yield again and again until the time is over, at least once; pause after each."""
    deadline = time.monotonic() + seconds
    while True:
        yield
        time.sleep(pause_s + random.uniform(0, spread_s))
        if time.monotonic() >= deadline:
            return


DISTURBANCES: dict[str, "Callable[[float, Drill], Counts]"] = {
    "upgrade": upgrade,
    "kills": kills,
    "containerd": containerd,
    "sabotage": sabotage,
}

"""``make consistency``: strong volumes on three nodes, watched while daemons are killed and cables are pulled.

usage: python -m tests.csi_ub.consistency [--seconds S] [--keep DIR]

As root, in namespaces of its own (``packaging/in-namespaces``). Volumes with one replica and with three. Prints a table
and ends with 0 if every strong volume was strong and every negative control was caught. Histories stay in DIR.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import grpc

from tests.csi_ub import netns
from tests.csi_ub.consistency.history import Operation, violations
from tests.csi_ub.consistency.workers import records
from tests.csi_ub.driver import REPO, Driver, environment
from tests.csi_ub.pools import unmount_below

NODES = ["node0", "node1", "node2"]
_LONGEST_S = 120.0
CACHED = """
volume write-behind
  type performance/write-behind
  subvolumes client
end-volume
volume io-cache
  type performance/io-cache
  option cache-timeout 5
  subvolumes write-behind
end-volume
"""


@dataclass(frozen=True)
class Verdict:
    """One line of the table."""

    what: str
    operations: int
    wrong: int
    note: str = ""
    must_be_caught: bool = False

    @property
    def is_good(self) -> bool:
        return self.operations > 0 and (self.wrong > 0) is self.must_be_caught


@dataclass(frozen=True)
class Bench:
    """Three nodes that see one volume at ``paths``. ``is_harmful``: daemons are killed while they work."""

    nodes: list[Driver]
    paths: list[Path]
    seconds: float
    keep: Path
    replicas: int = 1
    is_harmful: bool = False

    def work(self, kind: str, name: str, paths: list[Path] | None = None) -> list[tuple[int, dict[str, object]]]:
        """Let two workers a node do ``kind``; return what each told, and keep it in a file."""
        places = paths or [path / name for path in self.paths]
        command = [sys.executable, "-m", "tests.csi_ub.consistency.workers", kind]
        seconds = str(_LONGEST_S if self.is_harmful else self.seconds)
        told: list[tuple[int, dict[str, object]]] = []
        with ExitStack() as stack:  # files, not pipes: nobody reads while they work
            outs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in [*places, *places]]
            workers = [
                subprocess.Popen([*command, str(place), str(me), seconds], stdout=out, cwd=REPO, env=environment())
                for me, (place, out) in enumerate(zip([*places, *places], outs, strict=True), 1)
            ]
            self._wait_for(workers)
            for me, out in enumerate(outs, 1):
                out.seek(0)
                told += [(me, json.loads(line)) for line in out]
        history = self.keep / f"replicas-{self.replicas}-{name.replace(',', '').replace(' ', '-')}.jsonl"
        history.write_text("".join(json.dumps([me, event]) + "\n" for me, event in told))
        return told

    def _wait_for(self, workers: list[subprocess.Popen[bytes]]) -> None:
        if self.is_harmful:
            self._harm()
            self._heal()
            time.sleep(self.seconds)  # so that some of what they do succeeds, however long it took to heal
            for worker in workers:
                worker.terminate()
        for worker in workers:
            assert worker.wait(timeout=_LONGEST_S) == 0

    def _harm(self) -> None:
        """Kill the volume's brick and bring it back, then pull a node's cable and put it back."""
        time.sleep(self.seconds / 4)
        for path in (self.nodes[0].root / "run/ub-node/gluster").glob("*.brick.pid"):
            os.kill(int(path.read_text()), signal.SIGKILL)
        time.sleep(0.3)
        self.nodes[0].stop()
        self.nodes[0].restart()
        time.sleep(self.seconds / 4)
        netns.cut("node2", 2, off=True)
        time.sleep(0.5)
        netns.cut("node2", 2, off=False)

    def _heal(self) -> None:
        deadline = time.monotonic() + _LONGEST_S
        while not all(_is_well(path) for path in self.paths):
            assert time.monotonic() < deadline, "the nodes did not find one another again"
            time.sleep(0.2)


def register(bench: Bench, kind: str, name: str, paths: list[Path] | None = None, *, control: bool = False) -> Verdict:
    (bench.paths[0] / name).write_bytes(bytes(8))
    told = bench.work(kind, name, paths)
    history = [
        Operation(e["start"], e["end"] if e["end"] is not None else float("inf"), e["value"], e["is_write"], str(me))  # type: ignore[arg-type]
        for me, e in told
    ]
    wrong = list(violations(history))
    if wrong and not control:
        shortest = min(wrong, key=lambda each: len(each.shown_by))
        print(f"{name}: {shortest.why}", *shortest.shown_by, sep="\n    ")
    failed = sum(each.end == float("inf") for each in history)
    return Verdict(name, len(history), len(wrong), f"{failed} failed", control)


def append(bench: Bench, name: str) -> Verdict:
    """Every acknowledged record is there once and whole, on every node: fsync means durable."""
    (bench.paths[0] / name).touch()
    acknowledged = Counter((me, int(str(e["number"]))) for me, e in bench.work("append", name))
    found = [Counter(records(path / name)) for path in bench.paths]
    wrong = sum((acknowledged - each).total() + len([n for n in each.values() if n > 1]) for each in found)
    return Verdict(name, acknowledged.total(), wrong)


def race(bench: Bench) -> Verdict:
    (bench.paths[0] / "race").mkdir()
    for number in range(200):
        (bench.paths[0] / f"race/prize-{number}").touch()
    won = Counter(str(event["won"]) for _, event in bench.work("race", "race"))
    return Verdict("create, mkdir, rename: one winner each", won.total(), sum(n > 1 for n in won.values()))


def lock(bench: Bench) -> Verdict:
    (bench.paths[0] / "count").write_bytes(b"%020d" % 0)
    told = bench.work("count", "count")
    final = [int((path / "count").read_bytes()) for path in bench.paths]
    wrong = sum(value != len(told) for value in final) + len(told) - len({event["value"] for _, event in told})
    return Verdict("counter under flock and fcntl locks", len(told), wrong)


def _is_well(path: Path) -> bool:
    try:
        path.stat()
    except OSError:
        return False
    return True


@contextmanager
def cached(bench: Bench, folder: Path) -> Iterator[list[Path]]:
    """Mount the same brick again on two nodes, with the caches that a strong volume leaves out."""
    points = []
    for node in bench.nodes[1:]:
        source = next((node.root / "run/ub-node/gluster").glob("*.client.vol"))
        graph, point = folder / f"{node.node}.vol", folder / f"cached-{node.node}"
        graph.write_text(source.read_text() + CACHED)
        point.mkdir()
        flags = ["--attribute-timeout=5", "--entry-timeout=5", "--direct-io-mode=disable", "--auto-invalidation=off"]
        subprocess.run(
            [*netns.inside(node.node), "glusterfs", "-f", str(graph), *flags, "-l", str(folder / "log"), str(point)],
            check=True,
        )
        points.append(point / "data")
    deadline = time.monotonic() + 10
    while not all(point.is_dir() for point in points) and time.monotonic() < deadline:
        time.sleep(0.05)
    yield points
    for point in points:
        subprocess.run(["umount", "-l", str(point.parent)], check=True)


def _delete(owner: Driver, volume_id: str) -> None:
    """Delete as a cluster does: a replica that was away learns only now that the nodes have let go."""
    deadline = time.monotonic() + _LONGEST_S
    while True:
        try:
            owner.delete(volume_id)
        except grpc.RpcError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
        else:
            return


@contextmanager
def bench(folder: Path, seconds: float, keep: Path, replicas: int) -> Iterator[Bench]:
    with netns.network(NODES) as addresses:
        peers = [{"node": name, "address": address} for name, address in addresses.items()]
        nodes = [
            Driver.start(folder, name, config={"peers": peers}, within=tuple(netns.inside(name))) for name in NODES
        ]
        try:
            volume = nodes[0].create("register", parameters={"engine": "glusterfs", "replicas": str(replicas)})
            paths = []
            for node in nodes:
                node.stage(volume)
                paths.append(node.publish(volume))
            yield Bench(nodes, paths, seconds, keep, replicas)
            for node in nodes:
                node.unpublish(volume)
                node.unstage(volume)
            _delete(nodes[0], volume.volume_id)
        finally:
            for node in nodes:
                node.stop()
            unmount_below(folder)


def judge(replicas: int, seconds: float, keep: Path) -> list[Verdict]:
    """Return the verdicts on a volume with so many replicas; the control needs one brick only."""
    with (
        tempfile.TemporaryDirectory(prefix="ub-consistency-") as name,
        bench(Path(name), seconds, keep, replicas) as calm,
    ):
        harmed = replace(calm, is_harmful=True)
        verdicts = [
            register(calm, "register-open", "register, open for each operation"),
            register(calm, "register-held", "register, descriptor held"),
            append(calm, "append log, from three nodes"),
            race(calm),
            lock(calm),
            register(harmed, "register-open", "register, brick killed, cable pulled"),
            append(harmed, "append log, brick killed, cable pulled"),
        ]
        if replicas == 1:
            verdicts.append(control(calm, Path(name)))
    return verdicts


def control(calm: Bench, folder: Path) -> Verdict:
    """Let the judge look at the same volume with GlusterFS's usual caches, which it must find out."""
    with cached(calm, folder) as paths:
        places = [path / "control" for path in paths]
        caught = register(calm, "register-held", "control", places, control=True)
        for _ in range(3):  # caches are not always wrong: the judge is called blind after the fourth time only
            if not caught.wrong:
                caught = register(calm, "register-held", "control", places, control=True)
    return caught


def main() -> int:
    parser = argparse.ArgumentParser(prog="consistency", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4, help="how long each suite runs (default 4)")
    parser.add_argument("--keep", type=Path, help="folder for the histories (default: a temporary one)")
    arguments = parser.parse_args()
    keep = arguments.keep or Path(tempfile.mkdtemp(prefix="ub-histories-"))
    keep.mkdir(parents=True, exist_ok=True)
    is_good = True
    for replicas in (1, 3):
        title = f"three nodes, engine glusterfs, replicas {replicas}"
        verdicts = judge(replicas, arguments.seconds, keep)
        print(f"{title:<46} {'operations':>10} {'violations':>10}")
        for each in verdicts:
            mark = "ok" if each.is_good else "FAILED"
            what = "negative control: with caches" if each.must_be_caught else each.what
            print(f"{what:<46} {each.operations:>10} {each.wrong:>10}  {mark}  {each.note}".rstrip())
        is_good = is_good and all(each.is_good for each in verdicts)
        print(flush=True)
    print(f"histories: {keep}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())

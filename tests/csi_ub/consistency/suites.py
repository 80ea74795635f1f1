"""Three nodes at work on one volume, and the verdict on what each saw: the suites of ``make consistency``."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.csi_ub import netns
from tests.csi_ub.consistency.history import Operation, violations
from tests.csi_ub.consistency.workers import READY, records
from tests.csi_ub.driver import REPO, Driver, environment

LONGEST_S = 120.0


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
    """Three nodes that see one volume at ``paths``. ``is_harmful``: daemons are killed while they work.

    They work for so many ``seconds``, or ``rounds`` if these are given: then what is done does not hang on the machine.
    """

    nodes: list[Driver]
    paths: list[Path]
    seconds: float
    keep: Path
    replicas: int = 1
    is_harmful: bool = False
    rounds: int = 0

    def work(self, kind: str, name: str, paths: list[Path] | None = None) -> list[tuple[int, dict[str, object]]]:
        """Let two workers a node do ``kind``; return what each told, and keep it in a file."""
        places = paths or [path / name for path in self.paths]
        command = [sys.executable, "-m", "tests.csi_ub.consistency.workers", kind]
        limit = f"{self.rounds}x" if self.rounds else f"{LONGEST_S if self.is_harmful else self.seconds}s"
        told: list[tuple[int, dict[str, object]]] = []
        with ExitStack() as stack:  # files, not pipes: nobody reads while they work
            outs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in [*places, *places]]
            begin, give = os.pipe()
            workers = [
                subprocess.Popen(
                    [*command, str(place), str(me), limit], stdin=begin, stdout=out, cwd=REPO, env=environment()
                )
                for me, (place, out) in enumerate(zip([*places, *places], outs, strict=True), 1)
            ]
            os.close(begin)
            _wait_until(lambda: all(os.fstat(out.fileno()).st_size for out in outs), "a worker is not ready")
            os.close(give)  # all begin at once
            self._wait_for(workers)
            for me, out in enumerate(outs, 1):
                out.seek(len(READY))
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
            assert worker.wait(timeout=LONGEST_S) == 0

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
        _wait_until(lambda: all(_is_well(path) for path in self.paths), "the nodes did not find one another again")


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
        sys.stdout.write("\n    ".join([f"{name}: {shortest.why}", *map(str, shortest.shown_by)]) + "\n")
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


def turns(bench: Bench, name: str, readers: list[Path], *, control: bool = False) -> Verdict:
    """One node writes, then others read through descriptors that they hold, in turns: no chance takes part in it."""
    file, history = bench.paths[0] / name, list[Operation]()
    file.write_bytes(bytes(8))

    def read(descriptor: int) -> None:
        start = time.monotonic_ns()
        value = int.from_bytes(os.pread(descriptor, 8, 0))
        history.append(Operation(start, time.monotonic_ns(), value, is_write=False))

    def write(descriptor: int, value: int) -> None:
        start = time.monotonic_ns()
        os.pwrite(descriptor, value.to_bytes(8), 0)
        history.append(Operation(start, time.monotonic_ns(), value, is_write=True))

    with ExitStack() as stack:
        writer, *held = (os.open(path, os.O_RDWR) for path in (file, *(reader / name for reader in readers)))
        for descriptor in (writer, *held):
            stack.callback(os.close, descriptor)
        for value in range(1, 1 + (bench.rounds or 20)):
            for descriptor in held:
                read(descriptor)
            write(writer, value)
            for descriptor in held:
                read(descriptor)
    return Verdict("one writes, then others read", len(history), len(list(violations(history))), "", control)


def _wait_until(good: Callable[[], bool], why_not: str) -> None:
    deadline = time.monotonic() + LONGEST_S
    while not good():
        assert time.monotonic() < deadline, why_not
        time.sleep(0.05)


def _is_well(path: Path) -> bool:
    try:
        path.stat()
    except OSError:
        return False
    return True

"""Our executables on this node: where they are, and running one as a daemon for the length of a test."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BUNDLE = Path("/mnt/payload/ub-node")
RESULTS = Path("/tmp/results")
STOP_S = 20.0


@dataclass
class Daemon:
    """A program of ours that runs; ``log`` has all it said."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def said(self, message: str) -> int:
        """Return how often its log has ``message``."""
        return self.log.read_text(errors="replace").count(message)

    def wait_for(self, message: str, times: int = 1, timeout_s: float = 60) -> None:
        """Wait until it has logged ``message`` so often."""

        def has_said() -> bool:
            said = self.said(message)
            assert said >= times or self.process.poll() is None, f"it ended: {self.log.read_text()[-2000:]}"
            return said >= times

        wait_until(has_said, f"{self.log.name} says {message!r} {times} times", timeout_s)


@contextmanager
def daemon(name: str, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Daemon]:
    """Run an executable of the bundle; at the end it must stop cleanly on SIGTERM."""
    RESULTS.mkdir(exist_ok=True)
    log = RESULTS / f"{name}-{time.monotonic_ns()}.log"
    with log.open("wb") as output:
        command = [str(BUNDLE / name), *arguments]
        environ = {**os.environ, "PYTHONPATH": "", **(env or {})}
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environ)
    try:
        yield Daemon(process, log)
        assert process.poll() is None, f"{name} ended with {process.returncode}: {log.read_text()[-2000:]}"
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{name} does not end: {waits(process.pid)}; {log.read_text()[-2000:]}") from None
        assert process.returncode == 0, f"{name} ended with {process.returncode}: {log.read_text()[-2000:]}"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def waits(pid: int) -> str:
    """Return where in the kernel each thread of a process is, as root sees it."""
    threads = sorted(Path(f"/proc/{pid}/task").iterdir())
    names = ("comm", "wchan", "syscall", "stack")
    return "\n".join(
        " ".join([thread.name, *((thread / name).read_text().strip() for name in names)]) for thread in threads
    )


def mount_points() -> list[str]:
    """Return where something is mounted on this node, the bind mounts of one file system too."""
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    """Wait until ``holds()``; fail with ``what`` did not happen."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.1)

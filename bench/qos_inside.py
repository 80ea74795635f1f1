"""Runs in the guest: online latency alone, with offline work unmanaged, and with offline work under nri-qos.

The online pod answers a request every 20 ms on each of its CPUs, 12 ms of CPU time each: 60 % load, open loop, so a
request that waits makes the next ones wait too; latency counts from the time when it was due. Four offline spinners are
the neighbours. The order of the arms turns around in every round. Prints one JSON line.

Source of the method: reference/nri.md sections 6.2 and 6.3.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.inside.cri import Container, Resources, Runtime, import_images
from e2e.inside.programs import daemon

CLASS = "qos.unifiedbus.com/class"
RESULTS = Path("/run/bench-qos")
LOAD = """
import json, os, sys, time
seconds, workers, period, work = float(sys.argv[1]), int(sys.argv[2]), 0.020, 0.012
begin = time.monotonic() + 0.5
pids = []
for worker in range(workers):
    pid = os.fork()
    if pid == 0:
        late = []
        for number in range(int(seconds / period)):
            due = begin + worker * period / workers + number * period
            pause = due - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            until = time.process_time() + work
            while time.process_time() < until:
                pass
            late.append(time.monotonic() - due)
        with open(f"{sys.argv[3]}.{worker}", "w") as out:
            json.dump(late, out)
        os._exit(0)
    pids.append(pid)
for pid in pids:
    os.waitpid(pid, 0)
open(f"{sys.argv[3]}.done", "w").close()
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--qos", default="HLS")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    import_images()
    runtime = Runtime()
    runtime.wait_until_ready()
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "load.py").write_text(LOAD)
    rows = []
    arms = ["alone", "unmanaged", "managed"]
    for number in range(args.rounds):
        for arm in arms if number % 2 == 0 else reversed(arms):
            rows.append({"arm": arm, "round": number, **measure(runtime, arm, args)})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps(rows))
    return 0


def measure(runtime: Runtime, arm: str, args: argparse.Namespace) -> dict[str, float]:
    with plugin(arm == "managed"):
        spinners = [] if arm == "alone" else [start(runtime, f"spin{n}", "BE", *SPIN) for n in range(4)]
        name = f"{arm}-{time.monotonic_ns()}"
        command = [
            "chroot",
            "/host",
            "python3",
            f"{RESULTS}/load.py",
            str(args.seconds),
            str(args.cpus),
            f"{RESULTS}/{name}",
        ]
        start(runtime, "online", args.qos, *command, cpus=args.cpus)
        time.sleep(2)  # the loop has seen both
        before = sum(used(spinner) for spinner in spinners)
        began = time.monotonic()
        wait_for(RESULTS / f"{name}.done", args.seconds * 20)
        offline = (sum(used(spinner) for spinner in spinners) - before) / (time.monotonic() - began)
        late = sorted(
            1000 * each
            for worker in range(args.cpus)
            for each in json.loads((RESULTS / f"{name}.{worker}").read_text())[int(2 / 0.020) :]
        )
        runtime.remove_all()
    return {
        "p50_ms": late[len(late) // 2],
        "p99_ms": late[len(late) * 99 // 100],
        "max_ms": late[-1],
        "offline_cpus": offline,
    }


SPIN = ("sh", "-c", "while :; do :; done")


def start(runtime: Runtime, name: str, qos: str, *command: str, cpus: int = 0) -> Container:
    """Run a pod; with ``cpus`` it is Guaranteed and sees the node's files, where Python is."""
    resources = Resources(cpus * 1000, cpus * 1000, 256 << 20) if cpus else Resources(cpu_request_m=100)
    pod = runtime.run_pod(name, annotations={CLASS: qos}, resources=resources, host_network=True)
    mounts = {Path("/"): "/host"} if cpus else {}
    return runtime.run_container(pod, *command, mounts=mounts, resources=resources)


@contextmanager
def plugin(is_wanted: bool) -> Iterator[None]:
    if not is_wanted:
        yield
        return
    with daemon("nri-qos", env={"UB_ROOT": "/"}) as running:
        running.wait_for("synchronized with the runtime")
        yield
    subprocess.run(["/mnt/payload/ub-node/nri-qos", "--restore"], env={**os.environ, "UB_ROOT": "/"}, check=True)


def used(container: Container) -> float:
    """Return the CPU seconds that a container used so far."""
    stat = dict(line.split() for line in container.knob("cpu.stat").splitlines())
    return int(stat["usage_usec"]) / 1e6


def wait_for(path: Path, timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not appear"
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())

"""Runs in the guest: online latency alone, with offline work unmanaged, and with offline work under nri-qos.

The last twice: as it comes, and with ``offline_idle``.

The online pod answers a request every 20 ms on each of its CPUs, 12 ms of CPU time each: 60 % load, open loop, so a
request that waits makes the next ones wait too; latency counts from the time when it was due. Four offline spinners are
the neighbours. The order of the arms turns around in every round.

Then the same load comes to an online pod of class LS that was idle until then, while offline work has grown to all that
it may have: how long it takes until offline work is held to less, and until requests are as fast as they are alone.

Prints one JSON line. Source of the method: reference/nri.md sections 6.2 and 6.3.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.inside.cri import Container, Resources, Runtime, import_images
from e2e.inside.programs import daemon

CLASS = "qos.unifiedbus.com/class"
RESULTS = Path("/run/bench-qos")
PERIOD_S, WORK_S = 0.020, 0.012  # of a request
WARM_UP_S = 2.0
IDLE_S = 30.0  # before the step: offline work grows back
LESS = 0.95  # of what it had: shares that move among offline pods are no step
CALM = 25  # requests in a row that are as fast as alone
LOAD = f"""
import json, os, sys, time
seconds, workers, idle, out = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
begin = time.monotonic() + idle
with open(out + ".begin", "w") as file:
    file.write(str(begin))
pids = []
for worker in range(workers):
    pid = os.fork()
    if pid == 0:
        late = []
        for number in range(int(seconds / {PERIOD_S})):
            due = begin + worker * {PERIOD_S} / workers + number * {PERIOD_S}
            pause = due - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            until = time.process_time() + {WORK_S}
            while time.process_time() < until:
                pass
            late.append((due - begin, time.monotonic() - due))
        with open(f"{{out}}.{{worker}}", "w") as file:
            json.dump(late, file)
        os._exit(0)
    pids.append(pid)
for pid in pids:
    os.waitpid(pid, 0)
open(out + ".done", "w").close()
"""
CONFIG = {
    "managed": "",
    "idle": "offline_idle: true\n",
    "step": "floor: 0.25\n",  # or a small machine has nothing to give
}
SPIN = ("sh", "-c", "while :; do :; done")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--qos", default="HLS")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    import_images()
    runtime = Runtime()
    runtime.wait_until_ready()
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "load.py").write_text(LOAD)
    rows: list[dict[str, Any]] = []
    arms = ["alone", "unmanaged", "managed", "idle"]
    for number in range(args.rounds):
        for arm in arms if number % 2 == 0 else reversed(arms):
            rows.append({"arm": arm, "round": number, **measure(runtime, arm, args)})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    alone_ms = sorted(row["p99_ms"] for row in rows if row["arm"] == "alone")[args.rounds // 2]
    for number in range(args.rounds):
        rows.append({"arm": "step", "round": number, **step(runtime, args, 1.2 * alone_ms)})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps(rows))
    return 0


def measure(runtime: Runtime, arm: str, args: argparse.Namespace) -> dict[str, float]:
    """Return the latency of online requests and what offline work got meanwhile."""
    with plugin(arm in CONFIG, CONFIG.get(arm, "")):
        spinners = [] if arm == "alone" else spin(runtime)
        load = start_load(runtime, arm, args.qos, args.seconds, args.cpus, WARM_UP_S)
        before = sum(used(spinner) for spinner in spinners)
        began = time.monotonic()
        requests = wait_for(load, args.seconds * 20)
        offline = (sum(used(spinner) for spinner in spinners) - before) / (time.monotonic() - began)
        runtime.remove_all()
    late = sorted(1000 * took for due, took in requests if due >= WARM_UP_S)
    return {
        "p50_ms": late[len(late) // 2],
        "p99_ms": late[len(late) * 99 // 100],
        "max_ms": late[-1],
        "offline_cpus": offline,
    }


def step(runtime: Runtime, args: argparse.Namespace, calm_ms: float) -> dict[str, float | None]:
    """Return how fast offline work gave way to a load that came all at once."""
    with plugin(True, CONFIG["step"]):
        spinners = spin(runtime)
        load = start_load(runtime, "step", "LS", args.seconds, args.cpus, IDLE_S)
        begin = float(Path(f"{load}.begin").read_text())
        time.sleep(max(begin - time.monotonic(), 0))
        before = allowed(spinners)
        while allowed(spinners) > LESS * before and time.monotonic() < begin + args.seconds:
            time.sleep(0.01)
        gave_way = time.monotonic() - begin
        requests = wait_for(load, args.seconds * 20)
        after = allowed(spinners)
        runtime.remove_all()
    requests.sort()
    is_calm = [took * 1000 <= calm_ms for _, took in requests]
    settled = next((due for at, (due, _) in enumerate(requests) if all(is_calm[at : at + CALM])), None)
    return {
        "gave_way_s": gave_way if gave_way < args.seconds else None,
        "settled_s": settled,
        "before_cpus": before,
        "after_cpus": after,
    }


def start_load(runtime: Runtime, name: str, qos: str, seconds: float, cpus: int, idle_s: float) -> Path:
    """Start the online pod; it begins to work after ``idle_s``. Return the beginning of the names of its files."""
    out = RESULTS / f"{name}-{time.monotonic_ns()}"
    command = ["chroot", "/host", "python3", f"{RESULTS}/load.py", str(seconds), str(cpus), str(idle_s), str(out)]
    start(runtime, "online", qos, *command, cpus=cpus)
    until(Path(f"{out}.begin"), 60)
    return out


def spin(runtime: Runtime) -> list[Container]:
    return [start(runtime, f"spin{number}", "BE", *SPIN) for number in range(4)]


def start(runtime: Runtime, name: str, qos: str, *command: str, cpus: int = 0) -> Container:
    """Run a pod; with ``cpus`` it is Guaranteed and sees the node's files, where Python is."""
    resources = Resources(cpus * 1000, cpus * 1000, 256 << 20) if cpus else Resources(cpu_request_m=100)
    pod = runtime.run_pod(name, annotations={CLASS: qos}, resources=resources, host_network=True)
    mounts = {Path("/"): "/host"} if cpus else {}
    return runtime.run_container(pod, *command, mounts=mounts, resources=resources)


@contextmanager
def plugin(is_wanted: bool, text: str) -> Iterator[None]:
    """Run nri-qos with the configuration ``text``, and put everything back after it."""
    if not is_wanted:
        yield
        return
    config = RESULTS / "nri-qos.yaml"
    config.write_text(text)
    with daemon("nri-qos", "--config", str(config), env={"UB_ROOT": "/"}) as running:
        running.wait_for("synchronized with the runtime")
        yield
    subprocess.run(["/mnt/payload/ub-node/nri-qos", "--restore"], env={**os.environ, "UB_ROOT": "/"}, check=True)


def used(container: Container) -> float:
    """Return the CPU seconds that a container used so far."""
    stat = dict(line.split() for line in container.knob("cpu.stat").splitlines())
    return int(stat["usage_usec"]) / 1e6


def allowed(spinners: Sequence[Container]) -> float:
    """Return the CPUs that the pods of ``spinners`` may use by their quotas."""
    total = 0.0
    for spinner in spinners:
        quota, period = (spinner.cgroup.parent / "cpu.max").read_text().split()
        total += float("inf") if quota == "max" else int(quota) / int(period)
    return min(total, float(os.cpu_count() or 1))


def wait_for(load: Path, timeout_s: float) -> list[tuple[float, float]]:
    """Return (seconds after the begin, seconds that it took) of each request, when all are done."""
    until(Path(f"{load}.done"), timeout_s)
    workers = [path for path in load.parent.glob(f"{load.name}.*") if path.suffix[1:].isdigit()]
    return [(due, took) for path in workers for due, took in json.loads(path.read_text())]


def until(path: Path, timeout_s: float) -> None:
    limit = time.monotonic() + timeout_s
    while not path.exists() or (path.suffix == ".begin" and not path.read_text()):
        assert time.monotonic() < limit, f"{path} did not appear"
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())

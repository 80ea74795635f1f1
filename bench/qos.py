"""``make bench-qos``: what offline work costs online latency, with nri-qos and without, on a real kernel.

Runs ``bench/qos_inside.py`` in the guest of e2e, which gets no more CPUs than this machine has: two emulated CPUs on
one real one would disturb each other whatever the guest's kernel does. The guest is emulated and its host may be
shared: the ratios say something, the milliseconds do not, and one run proves nothing; so each round is printed, and
"overlap" where the arms cannot be told apart. NUMA distances in the guest are labels.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e import __main__ as e2e
from e2e import image
from e2e.machine import Machine, Spec
from e2e.payload import payload

REPO = Path(__file__).resolve().parents[1]
ARMS = {"alone": "alone", "unmanaged": "unmanaged", "managed": "managed", "idle": "managed, offline_idle"}
SOCKETS = 2
Row = dict[str, Any]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.qos", description=__doc__)
    parser.add_argument("--qos", default="HLS", choices=["HLS", "LS"], help="class of the online pod")
    parser.add_argument("--seconds", type=float, default=15, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="at least 2: one proves nothing")
    args = parser.parse_args(argv)
    if args.rounds < 2:
        parser.error("--rounds: at least 2")
    per_socket = max(1, min(2, (os.cpu_count() or 2) // SOCKETS))
    load = os.getloadavg()[0]
    rows = run(args.qos, args.seconds, args.rounds, per_socket)
    print(
        f"online pod: {args.qos}, {per_socket} CPUs at 60 %, open loop; neighbours: 4 offline spinners; guest of "
        f"{SOCKETS * per_socket} emulated CPUs; load of the host before: {load:.1f} on {os.cpu_count()} CPUs"
    )
    print(report(rows))
    return 0


def run(qos: str, seconds: float, rounds: int, per_socket: int) -> list[Row]:
    e2e.check_programs()
    guest = image.ensure(e2e.say)
    lines = bytearray()

    def seen(data: bytes) -> None:
        lines.extend(data)
        sys.stderr.buffer.write(data)  # each measurement as it ends: minutes pass until the table
        sys.stderr.flush()

    command = ["python3", "/mnt/payload/bench/qos_inside.py", "--qos", qos, "--cpus", str(per_socket)]
    command += ["--seconds", str(seconds), "--rounds", str(rounds)]
    parts = [*e2e.parts(), (REPO / "bench/qos_inside.py", "bench/qos_inside.py")]
    with e2e.one_at_a_time(), payload(*parts) as disk:
        spec = Spec(guest, disk, cpus_per_socket=per_socket)
        with Machine(spec, e2e.OUTPUT) as machine:
            done = machine.run(*command, timeout_s=3600, env=e2e.INSIDE_ENV, seen=seen)
    if done.exit:
        sys.exit(f"the guest's part ended with {done.exit}: {lines.decode(errors='replace')[-3000:]}")
    last = [line for line in lines.decode().splitlines() if line.startswith("[")][-1]
    rows = json.loads(last)
    assert isinstance(rows, list)
    return rows


def report(rows: Sequence[Row]) -> str:
    """Return the table, and the headline in its last line."""
    lines = ["arm                    p50 ms, each round        p99 ms, each round        offline CPUs"]
    for arm, name in ARMS.items():
        cells = [" ".join(f"{value:.1f}" for value in _column(rows, arm, key)) for key in ("p50_ms", "p99_ms")]
        offline = statistics.median(_column(rows, arm, "offline_cpus"))
        lines.append(f"{name:<22} {cells[0]:<25} {cells[1]:<25} {offline:.2f}")
    lines += ["", "a load of 60 % that comes all at once, to a pod of class LS, floor 0.25:"]
    lines += [_step(row) for row in rows if row["arm"] == "step"]
    alone, unmanaged, managed, idle = (_column(rows, arm, "p99_ms") for arm in ARMS)
    if min(unmanaged) <= max(managed):
        lines.append("the arms overlap: nothing is proved by this run")
    lines += [
        "",
        f"p99 unmanaged / alone              {_ratio(unmanaged, alone)}",
        f"p99 managed / alone                {_ratio(managed, alone)}",
        f"p99 managed, offline_idle / alone  {_ratio(idle, alone)}",
        "level: real kernel and containerd, emulated machine",
        f"ratio {statistics.median(managed) / statistics.median(alone):.2f}",
    ]
    return "\n".join(lines)


def _step(row: Row) -> str:
    gave_way = "not at all" if row["gave_way_s"] is None else f"after {row['gave_way_s']:.2f} s"
    settled = "not within the run" if row["settled_s"] is None else f"after {row['settled_s']:.2f} s"
    return (
        f"  offline work gave way {gave_way} ({row['before_cpus']:.2f} CPUs, in the end {row['after_cpus']:.2f}); "
        f"requests within 1.2 x p99 alone {settled}"
    )


def _ratio(these: Sequence[float], those: Sequence[float]) -> str:
    """Return the ratio of the medians, and the best and the worst of any two rounds."""
    middle = statistics.median(these) / statistics.median(those)
    return f"{middle:.2f} (any two rounds: {min(these) / max(those):.2f} to {max(these) / min(those):.2f})"


def _column(rows: Sequence[Row], arm: str, key: str) -> list[float]:
    return [float(row[key]) for row in rows if row["arm"] == arm]


if __name__ == "__main__":
    sys.exit(main())

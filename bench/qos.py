"""``make bench-qos``: what offline work costs online latency, with nri-qos and without, on a real kernel.

Runs ``bench/qos_inside.py`` in the guest of e2e. The guest is emulated and its host is shared: the ratios say
something, the milliseconds do not, and one run proves nothing; so the spread over the rounds is printed, and
"overlap" where the arms cannot be told apart. NUMA distances in the guest are labels.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from e2e import __main__ as e2e
from e2e import image
from e2e.machine import Machine, Spec
from e2e.payload import payload

REPO = Path(__file__).resolve().parents[1]
ARMS = ("alone", "unmanaged", "managed")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.qos", description=__doc__)
    parser.add_argument("--qos", default="HLS", choices=["HLS", "LS"], help="class of the online pod")
    parser.add_argument("--seconds", type=float, default=15, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args(argv)
    rows = run(args.qos, args.seconds, args.rounds)
    print(
        f"online pod: {args.qos}, 2 CPUs at 60 %, open loop; neighbours: 4 offline spinners; guest of 4 emulated CPUs"
    )
    print("arm        p50 ms (rounds)            p99 ms (rounds)            offline CPUs")
    for arm in ARMS:
        own = [row for row in rows if row["arm"] == arm]
        cells = [" ".join(f"{row[key]:.1f}" for row in own) for key in ("p50_ms", "p99_ms")]
        print(f"{arm:<10} {cells[0]:<26} {cells[1]:<26} {statistics.median(row['offline_cpus'] for row in own):.2f}")
    alone, unmanaged, managed = ([row["p99_ms"] for row in rows if row["arm"] == arm] for arm in ARMS)
    if min(unmanaged) <= max(managed):
        print("the arms overlap: nothing is proved by this run")
    print(f"unmanaged / alone {statistics.median(unmanaged) / statistics.median(alone):.2f}")
    print("level: real kernel and containerd, emulated machine")
    print(f"ratio {statistics.median(managed) / statistics.median(alone):.2f}")
    return 0


def run(qos: str, seconds: float, rounds: int) -> list[dict[str, Any]]:
    e2e.check_programs()
    guest = image.ensure(e2e.say)
    lines = bytearray()
    command = ["python3", "/mnt/payload/bench/qos_inside.py", "--qos", qos, "--seconds", str(seconds)]
    parts = [*e2e.parts(), (REPO / "bench/qos_inside.py", "bench/qos_inside.py")]
    with e2e.one_at_a_time(), payload(*parts) as disk, Machine(Spec(guest, disk), e2e.OUTPUT) as machine:
        done = machine.run(
            *command, "--rounds", str(rounds), timeout_s=3600, env=e2e.INSIDE_ENV, seen=lines.extend
        )  # fmt: skip
    if done.exit:
        sys.exit(f"the guest's part ended with {done.exit}: {lines.decode(errors='replace')[-3000:]}")
    last = [line for line in lines.decode().splitlines() if line.startswith("[")][-1]
    rows = json.loads(last)
    assert isinstance(rows, list)
    return rows


if __name__ == "__main__":
    sys.exit(main())

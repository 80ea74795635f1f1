"""How long the CNI executable takes to start and answer VERSION, beside bare Python and a peer written in Go.

Prints a table and ends with ``ratio R``: the median of ub-cni over the median of bare Python, taken by turns in this
run. The budget is 2.5 (20 ms where bare Python takes 8 ms).
"""

import os
import shutil
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROUNDS = 60
BUNDLE = Path(__file__).resolve().parents[1] / "dist" / "ub-node"
PEERS = Path("/usr/lib/cni")  # Debian's containernetworking-plugins
VERSION: dict[str, str] = {"CNI_COMMAND": "VERSION"}


def main() -> int:
    python = str(Path(sys.executable).resolve())
    rows: dict[str, list[str]] = {
        "bare python": [python, "-I", "-S", "-c", "pass"],
        "ub-cni VERSION": [str(BUNDLE / "ub-cni")],
    }
    if (PEERS / "bridge").exists():
        rows["bridge VERSION (Go)"] = [str(PEERS / "bridge")]
    rows["python, json and socket"] = [python, "-I", "-S", "-c", "import json, socket"]
    rows["ub-csi --version"] = [str(BUNDLE / "ub-csi"), "--version"]
    rows["nri-qos --version"] = [str(BUNDLE / "nri-qos"), "--version"]
    rows["ubnode --help"] = [str(BUNDLE / "ubnode"), "--help"]
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(ROUNDS):
        for name, command in rows.items():  # by turns, so that all see the same weather
            times[name].append(milliseconds(command, VERSION))
    bare = statistics.median(times["bare python"])
    print(f"{ROUNDS} starts each, by turns; milliseconds; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs\n")
    print(f"{'':<26}{'min':>8}{'p50':>8}{'p95':>8}{'p50 / bare':>12}")
    for name, values in times.items():
        p50, p95 = statistics.median(values), statistics.quantiles(values, n=20)[18]
        print(f"{name:<26}{min(values):>8.1f}{p50:>8.1f}{p95:>8.1f}{p50 / bare:>12.2f}")
    print(f"\nratio {statistics.median(times['ub-cni VERSION']) / bare:.2f}")
    return 0


def milliseconds(command: list[str], environ: Mapping[str, str]) -> float:
    """Time of one run, from spawn to the end of the process; its output is thrown away."""
    silence = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
    ]
    begin = time.perf_counter()
    pid = os.posix_spawn(command[0], command, environ, file_actions=silence)
    _, status = os.waitpid(pid, 0)
    taken = (time.perf_counter() - begin) * 1000
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(command)} ended with {code}; is the bundle built? (make build)")
    return taken


if __name__ == "__main__":
    if not shutil.which(str(BUNDLE / "ub-cni")):
        raise SystemExit(f"{BUNDLE} is missing: run make build")
    sys.exit(main())

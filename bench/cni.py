"""What attaching costs: ub-cni beside Debian's host-device, which does the same work in the kernel, and bridge.

The built executables, the agent running, host-local as IPAM on every side, all by turns in one run, in a network
namespace of our own. The UB side is the simulator (level: stand-in): its netdevs are veths, and exposing the device
and moving its 21 EIDs is talk with its daemon, which the peers do not have. A second table says what a call of
ub-cni is made of, each part measured by itself in the same rounds. Ends with ``ratio R``: the median of ADD + DEL of
ub-cni over that of host-device. The budget is 0.7; for 32 ADDs at a time it is 1.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.startup import VERSION, milliseconds

ROUNDS = 40
CROWD = 32
VERBS = ("ADD", "DEL")
REPOSITORY = Path(__file__).resolve().parents[1]
BUNDLE = Path(os.environ.get("UB_BIN_DIR", REPOSITORY / "dist" / "ub-node"))
PEERS = Path("/usr/lib/cni")  # Debian's containernetworking-plugins


@dataclass(frozen=True, slots=True)
class Contender:
    """One CNI plugin with its configuration for the ``n``-th device."""

    name: str
    executable: Path
    keys: Mapping[str, Any]
    device_key: str = ""
    device_format: str = ""

    def conf(self, folder: Path, number: int) -> Path:
        ipam = {
            "type": "host-local",
            "dataDir": str(folder / "ipam"),
            "ranges": [[{"subnet": "10.200.0.0/16"}]],
        }
        conf = {"cniVersion": "1.0.0", "name": self.name.replace(" ", "-"), **self.keys, "ipam": ipam}
        if self.device_key:
            conf[self.device_key] = self.device_format.format(number)
        path = folder / f"{conf['name']}-{number}.json"
        path.write_text(json.dumps(conf))
        return path


CONTENDERS = (
    Contender("ub-cni", BUNDLE / "ub-cni", {"type": "ub-cni"}, "deviceID", "urma_{}"),
    Contender("host-device", PEERS / "host-device", {"type": "host-device"}, "device", "hd{}"),
    Contender("bridge", PEERS / "bridge", {"type": "bridge", "bridge": "bench0"}),
)
HOST_LOCAL = Contender("host-local", PEERS / "host-local", {})


def main() -> int:
    if not os.environ.get("UB_TEST_KERNEL"):  # into namespaces of our own first
        command = [str(REPOSITORY / "packaging/in-namespaces"), sys.executable, "-m", "bench.cni"]
        return subprocess.run(command, check=False, cwd=REPOSITORY).returncode
    with machine() as (folder, environ):
        times, parts = by_turns(folder, environ)
        lone = without_agent(folder, environ)
        crowd = {c.name: in_parallel(c, folder, environ) for c in CONTENDERS[:2]}
    return report(times, parts, lone, crowd)


Times = dict[str, dict[str, list[float]]]
START, IPAM, AGENT, MOVE, REST = PARTS = (
    "start of the shim",
    "host-local, beside the move",
    "in the agent",
    "the kernel's move in it",
    "… and all the rest in it",
)


def by_turns(folder: Path, environ: Mapping[str, str]) -> tuple[Times, Times]:
    """Return what calls took, by contender and verb, and what the parts of ub-cni's took, by part and verb."""
    times: Times = {c.name: {"ADD": [], "DEL": []} for c in CONTENDERS}
    parts: Times = {part: {"ADD": [], "DEL": []} for part in PARTS}
    confs = {c.name: c.conf(folder, 1) for c in CONTENDERS}
    alone = CONTENDERS[0].conf(folder, CROWD + 1)
    for _ in range(ROUNDS):
        for contender in CONTENDERS:
            for verb in VERBS:
                call = Call(contender, verb, confs[contender.name], "pod1", environ)
                times[contender.name][verb].append(call.wait())
        for verb in VERBS:
            parts[START][verb].append(milliseconds([str(BUNDLE / "ub-cni")], VERSION))
            parts[IPAM][verb].append(Call(HOST_LOCAL, verb, alone, "pod2", environ).wait())
    parts[AGENT], parts[MOVE] = agent_times(folder)
    for verb in VERBS:
        parts[REST][verb] = [call - move for call, move in zip(parts[AGENT][verb], parts[MOVE][verb], strict=True)]
    return times, parts


def agent_times(folder: Path) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """What the agent says in its log that calls took, and the kernel's moves within them."""
    lines = [json.loads(line) for line in (folder / "agent.log").read_text().splitlines()]
    calls = {verb: [line["ms"] for line in lines if line.get("verb") == verb] for verb in VERBS}
    targets = {"ADD": "pod", "DEL": "host"}
    moves = {verb: [line["ms"] for line in lines if line.get("to") == targets[verb]] for verb in VERBS}
    return calls, moves


def without_agent(folder: Path, environ: Mapping[str, str]) -> dict[str, list[float]]:
    """The same calls when the executable has to do the work itself."""
    socket = Path(environ["UB_ROOT"], "run/ub-node/agent.sock")
    hidden = socket.with_name("hidden")
    socket.rename(hidden)
    conf = CONTENDERS[0].conf(folder, 1)
    times: dict[str, list[float]] = {"ADD": [], "DEL": []}
    for _ in range(ROUNDS // 4):
        for verb, values in times.items():
            values.append(Call(CONTENDERS[0], verb, conf, "pod1", environ).wait())
    hidden.rename(socket)
    return times


def in_parallel(contender: Contender, folder: Path, environ: Mapping[str, str]) -> float:
    """Return the milliseconds from the first of ``CROWD`` ADDs to the end of the last; the median of three."""
    walls = []
    confs = [contender.conf(folder, number) for number in range(1, CROWD + 1)]
    for _ in range(3):
        begin = time.perf_counter()
        calls = [Call(contender, "ADD", conf, f"pod{n}", environ) for n, conf in enumerate(confs, 1)]
        for call in calls:
            call.wait()
        walls.append((time.perf_counter() - begin) * 1000)
        for number, conf in enumerate(confs, 1):
            Call(contender, "DEL", conf, f"pod{number}", environ).wait()
    return statistics.median(walls)


class Call:
    """One call, timed from its spawn to its end."""

    def __init__(
        self, contender: Contender, verb: str, conf: Path, pod: str, environ: Mapping[str, str]
    ) -> None:  # fmt: skip
        self._what = f"{contender.name} {verb}"
        variables = {
            **environ,
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": f"{contender.name}-{pod}",
            "CNI_NETNS": f"/run/netns/{pod}",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": str(PEERS),
        }
        streams = [
            (os.POSIX_SPAWN_OPEN, 0, str(conf), os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(conf.with_suffix(".out")), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
            (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
        ]
        self._output = conf.with_suffix(".out")
        self._begin = time.perf_counter()
        self._pid = os.posix_spawn(
            str(contender.executable), [str(contender.executable)], variables, file_actions=streams
        )

    def wait(self) -> float:
        _, status = os.waitpid(self._pid, 0)
        taken = (time.perf_counter() - self._begin) * 1000
        if os.waitstatus_to_exitcode(status):
            raise SystemExit(f"{self._what} failed: {self._output.read_text()}")
        return taken


@contextmanager
def machine() -> Iterator[tuple[Path, dict[str, str]]]:
    """Hold a simulated node with its agent, devices for host-device, and pods."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ub")))
        scenario = folder / "scenario.yaml"
        scenario.write_text(f"name: bench\nnodes:\n  - {{name: node0, devices: {CROWD}}}\n")
        ubnode = [sys.executable, "-m", "ubnode", "sim"]
        root = str(folder / "up")
        quietly([*ubnode, "up", "--scenario", str(scenario), "--root", root])
        stack.callback(quietly, [*ubnode, "down", "--root", root])
        for number in range(1, CROWD + 1):
            sh(f"ip netns add pod{number}")
            sh(f"ip link add hd{number} type veth peer name hp{number}")
            sh(f"ip link set hp{number} up")
        environ = {"PATH": os.environ["PATH"], "UB_ROOT": str(folder / "up/node0")}
        log = stack.enter_context((folder / "agent.log").open("wb"))
        agent = subprocess.Popen([BUNDLE / "ub-agent"], env=environ, stdout=log, stderr=log)
        stack.callback(agent.wait)
        stack.callback(agent.terminate)
        socket = Path(environ["UB_ROOT"], "run/ub-node/agent.sock")
        deadline = time.monotonic() + 30
        while not socket.exists():
            if agent.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the agent does not start; is the bundle built? (make build)")
            time.sleep(0.05)
        yield folder, environ


def report(times: Times, parts: Times, lone: Mapping[str, list[float]], crowd: Mapping[str, float]) -> int:
    rows = {**times, "ub-cni, no agent": lone}
    both = {name: [a + d for a, d in zip(row["ADD"], row["DEL"], strict=True)] for name, row in rows.items()}
    peer = statistics.median(both["host-device"])
    print(f"{ROUNDS} rounds by turns; milliseconds; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs;"
          " UB side: simulator (stand-in)\n")  # fmt: skip
    print(f"{'':<28}{'ADD p50':>9}{'p95':>8}{'DEL p50':>9}{'p95':>8}{'both p50':>10}{'/ host-device':>15}")
    for name, row in rows.items():
        median = statistics.median(both[name])
        print(f"{_row(name, row)}{median:>10.1f}{median / peer:>15.2f}")
    print("\nof a call of ub-cni:")
    for name, row in parts.items():
        print(_row(name, row))
    floor = sum(statistics.median(values) for part in (START, MOVE) for values in parts[part].values())
    print(f"start and move alone, ADD + DEL: {floor:.1f}, ratio {floor / peer:.2f}")
    print(f"\n{CROWD} ADDs at a time, wall: " + ", ".join(f"{name} {ms:.0f} ms" for name, ms in crowd.items()))
    print(f"ratio of walls {crowd['ub-cni'] / crowd['host-device']:.2f}")
    print(f"\nratio {statistics.median(both['ub-cni']) / peer:.2f}")
    return 0


def _row(name: str, row: Mapping[str, list[float]]) -> str:
    return f"{name:<28}" + "".join(f"{statistics.median(row[verb]):>9.1f}{_p95(row[verb]):>8.1f}" for verb in VERBS)


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[18]


def sh(command: str) -> None:
    subprocess.run(command.split(), check=True)


def quietly(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    if not (BUNDLE / "ub-cni").exists() or shutil.which("ip") is None:
        raise SystemExit("needs the bundle (make build) and iproute2")
    sys.exit(main())

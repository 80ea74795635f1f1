"""``make bench-nri``: how long nri-qos keeps a runtime waiting, and what it costs a node.

The peer is a plugin that does nothing but speak the protocol, in the same run: what is over its figure is ours. The
runtime is the stand-in of ubsim and the cgroup tree is plain files in memory, so the figures say what the plugin costs,
not what a kernel or containerd does. Targets: design section 11.
"""

import argparse
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ubproto.nri.v1alpha1 import nri_pb2

from nri_qos import messages, observe
from nri_qos.config import Config
from nri_qos.files import Hierarchy
from nri_qos.journal import Journal
from nri_qos.loop import Loop
from nri_qos.placement import Room, choose_nodes
from nri_qos.ttrpc.session import Call, Session
from nri_qos.world import World
from nri_qos.writer import Writer
from tests.nri_qos import nodes
from tests.nri_qos.cgroups import Tree
from tests.nri_qos.conftest import container, pod
from ubsim.runtime import Runtime

CLASSES = ("HLS", "LS", "BE", "BE", None)
TOP = Path(__file__).resolve().parents[1]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.nri", description=__doc__)
    parser.add_argument("--containers", type=int, default=1000, help="in the model while calls are measured")
    parser.add_argument("--calls", type=int, default=1000, help="CreateContainer calls measured")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bench-nri-") as folder:
        rows, ratio = measure(Path(folder), args.containers, args.calls)
    width = max(len(name) for name, *_ in rows)
    for name, value, limit in rows:
        print(f"{name:<{width}}  {value:>12}  {limit}")
    print("\nlevel: stand-in (a runtime of ours, cgroup files that are plain files)")
    print(f"ratio {ratio:.2f}")
    return 0


def measure(root: Path, containers: int, calls: int) -> tuple[list[tuple[str, str, str]], float]:
    nodes.write(nodes.machine("0-63", "64-127", remote=1), root)
    rows: list[tuple[str, str, str]] = []
    peer = _create_times(root / "peer", containers, calls, _peer)
    ours = _create_times(root, containers, calls, lambda _: _plugin(root), rows)
    for name, times in (("peer (does nothing)", peer), ("nri-qos", ours)):
        rows.append(
            (f"CreateContainer, {containers} containers, {name}, p50", f"{_ms(times, 0.5):.2f} ms", "target 5 ms")
        )
        rows.append(
            (f"CreateContainer, {containers} containers, {name}, p99", f"{_ms(times, 0.99):.2f} ms", "target 20 ms")
        )
    shutil.rmtree(root / "sys/fs/cgroup")
    nodes.write(nodes.machine("0-63", "64-127", remote=1), root)
    took = _turn_time(root, 5000)
    rows.append(("loop over 5000 cgroups, one period", f"{took:.3f} s", "target 1 s"))
    shutil.rmtree(root / "sys/fs/cgroup")
    nodes.write(nodes.machine("0-63", "64-127", remote=1), root)
    took = _synchronize_time(root, 2000)
    rows.append(("Synchronize, 2000 pods of 4 KiB, to the answer", f"{took:.2f} s", "target 1 s"))
    rows.append(("choice among 40 NUMA nodes, the slowest of three", f"{_choice_time(40):.2f} ms", "target 50 ms"))
    return rows, _ms(ours, 0.5) / _ms(peer, 0.5)


def _choice_time(count: int) -> float:
    """Return the milliseconds of CPU time that it takes to choose a few, half, and all but one of ``count`` nodes."""
    machine = nodes.machine(*(f"{4 * n}-{4 * n + 3}" for n in range(count)))
    room = Room({n: 4000 - 100 * (n % 7) for n in range(count)}, dict.fromkeys(range(count), nodes.GIB))
    times = []
    for cpus in (3, count // 2 * 4, (count - 1) * 4):
        began = time.process_time()
        assert choose_nodes(machine, room, cpus * 900, 0)
        times.append(1000 * (time.process_time() - began))
    return max(times)


def _ms(times: list[float], quantile: float) -> float:
    return 1000 * sorted(times)[min(int(len(times) * quantile), len(times) - 1)]


def _command() -> list[str]:
    built = Path(os.environ.get("UB_BIN_DIR", TOP / "dist/ub-node"), "nri-qos")
    return [str(built)] if built.exists() else [sys.executable, "-m", "nri_qos"]


@contextmanager
def _plugin(root: Path) -> Iterator[int]:
    """Run nri-qos; yield its process id."""
    environ = {**os.environ, "UB_ROOT": str(root), "PYTHONPATH": f"{TOP}:{TOP / 'proto'}"}
    with subprocess.Popen(_command(), env=environ, cwd=TOP, stderr=subprocess.DEVNULL) as process:
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait()


@contextmanager
def _peer(path: Path) -> Iterator[int]:
    """Run a plugin that subscribes to the same events and answers with nothing."""
    process = multiprocessing.get_context("fork").Process(target=_serve_nothing, args=(path,))
    process.start()
    try:
        yield process.pid or 0
    finally:
        process.terminate()
        process.join()


def _serve_nothing(path: Path) -> None:
    session = Session()
    with socket.socket(socket.AF_UNIX) as trunk:
        trunk.connect(str(path))
        register = nri_pb2.RegisterPluginRequest(plugin_name="nothing", plugin_idx="10")
        session.call("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin", register.SerializeToString())
        trunk.sendall(session.take_output())
        while data := trunk.recv(1 << 18):
            for event in session.receive(data):
                if isinstance(event, Call):
                    is_first = event.method == "Configure"
                    answer = nri_pb2.ConfigureResponse(events=0x7CF) if is_first else nri_pb2.Empty()
                    session.answer(event, answer.SerializeToString())
            trunk.sendall(session.take_output())


def _fill(runtime: Runtime, tree: Tree, count: int) -> None:
    """Give the runtime ``count`` pods of all classes with a running container each."""
    for number in range(count):
        qos = CLASSES[number % len(CLASSES)]
        made = pod(f"p{number}", qos, guaranteed=qos == "HLS")
        runtime.pods[made.id] = made
        tree.pod(made)
        asked = container(made, cpus=0.5)
        tree.container(asked)
        asked.state = nri_pb2.CONTAINER_RUNNING
        runtime.containers[asked.id] = asked


def _create_times(
    root: Path,
    containers: int,
    calls: int,
    plugin: Callable[[Path], AbstractContextManager[int]],
    rows: list[tuple[str, str, str]] | None = None,
) -> list[float]:
    """Return the seconds that each CreateContainer took; add what the process costs to ``rows``."""
    path = root / "var/run/nri/nri.sock"
    (root / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
    with Runtime(path, timeout_s=10) as runtime:
        _fill(runtime, Tree(root), containers)
        with plugin(path) as pid:
            runtime.register(timeout_s=30)
            if rows is not None:
                _add_cost(rows, pid, containers)
            times = []
            for number in range(calls):
                made = pod(f"new{number}", CLASSES[number % len(CLASSES)], guaranteed=True)
                runtime.run_pod(made)
                asked = container(made, cpus=1)
                began = time.perf_counter()
                runtime.create(asked)
                times.append(time.perf_counter() - began)
                runtime.stop(asked.id)
                runtime.remove(asked.id)
                runtime.stop_pod(made.id)
                runtime.remove_pod(made.id)
        return times


def _add_cost(rows: list[tuple[str, str, str]], pid: int, containers: int, seconds: float = 10) -> None:
    """Measure what the process takes while nothing happens but the loop."""
    time.sleep(5)
    before = _cpu_seconds(pid)
    time.sleep(seconds)
    share = 100 * (_cpu_seconds(pid) - before) / seconds
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    rows.append((f"loop at {containers} containers, CPU", f"{share:.2f} %", "target 1 % of a core"))
    rows.append(
        (
            f"resident memory at {containers} containers",
            f"{int(status['VmRSS'].split()[0]) / 1024:.1f} MiB",
            "target 60 MiB",
        )
    )


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _synchronize_time(root: Path, pods: int) -> float:
    with Runtime(root / "var/run/nri/nri.sock", timeout_s=10) as runtime:
        for number in range(pods):
            made = pod(f"p{number}", CLASSES[number % len(CLASSES)], note="x" * 4096)
            runtime.pods[made.id] = made
            asked = container(made, cpus=0.5)
            runtime.containers[asked.id] = asked
        with _plugin(root):
            runtime.handshake(runtime.accept(timeout_s=30))
            began = time.perf_counter()
            runtime.synchronize(parts=4)
            return time.perf_counter() - began


def _turn_time(root: Path, cgroups: int) -> float:
    """Return the seconds of one turn of the loop over ``cgroups`` cgroups: half pods, half containers."""
    world = World(Config())
    world.machine = observe.read_machine(root / "sys")
    (root / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
    tree = Tree(root)
    for number in range(cgroups // 2):
        qos = CLASSES[number % len(CLASSES)] or "LS"
        made = pod(f"p{number}", qos, guaranteed=qos == "HLS")
        tree.pod(made)
        asked = container(made, cpus=0.5)
        tree.container(asked)
        with world.locked():
            world.add_pod(messages.pod(made))
            world.create(None, messages.container(asked))
            world.started(messages.container(asked))
    journal = Journal(root / "run/bench.journal")
    files = Hierarchy(tree.root)
    loop = Loop(world, files, Writer(files, journal), journal.entries)
    times = []
    for turn in range(8):
        began = time.perf_counter()
        loop.turn(float(turn))
        times.append(time.perf_counter() - began)
    journal.close()
    return statistics.median(times[2:])


if __name__ == "__main__":
    sys.exit(main())

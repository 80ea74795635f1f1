"""What people and Prometheus are told."""

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from ubproto.nri.v1alpha1 import nri_pb2

from nri_qos import cli, counters, metrics
from nri_qos.latency import BOUNDS_S, Latencies
from tests.nri_qos import nodes
from tests.nri_qos.cgroups import Tree
from tests.nri_qos.conftest import TOP, Plugin, container, environment, pod, run, start_pod, until
from ubhost.errors import NotFound
from ubsim.runtime import CallRefused, Runtime


@pytest.fixture
def running(runtime: Runtime, plugin: Plugin, tree: Tree, root: Path) -> int:
    """A node with three pods; returns the port of the metrics."""
    plugin.start(config={"period": 0.1, "metrics_address": "127.0.0.1:0", "knobs": {"HLS": {"memory.low": "4096"}}})
    port = plugin.wait_for("serving metrics and probes")["port"]
    runtime.register()
    for name, qos in (("web", "LS"), ("db", "HLS"), ("batch", "BE")):
        files = {
            "memory.numa_stat": "anon N0=1048576 N2=2097152\nfile N0=0 N2=1048576\nshmem N0=0 N2=5",
            "memory.events": f"low 0\nmax 0\noom 0\noom_kill {int(name == 'db')}",
        }
        start_pod(runtime, tree, name, qos, 2, guaranteed=qos == "HLS", files=files)
    plugin.wait_for("offline work squeezed")
    until(lambda: 'ub_qos_writes_total{file="cpu.max"}' in fetch(port, "/metrics")[1])
    return int(port)


def fetch(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def ubnode(root: Path, *arguments: str) -> str:
    folder = os.environ.get("UB_BIN_DIR")
    command = [str(Path(folder, "ubnode"))] if folder else [sys.executable, "-m", "ubnode"]
    done = subprocess.run([*command, "qos", *arguments], env=environment(root), cwd=TOP, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_metrics_tell_decisions_quota_session_and_capabilities(running: int, runtime: Runtime) -> None:
    status, text = fetch(running, "/metrics")
    assert status == 200
    for line in (
        "ub_qos_nri_connected 1.0",
        "ub_qos_nri_synchronized 1.0",
        'ub_qos_decisions_total{class="HLS"} 1.0',
        'ub_qos_pods{class="BE"} 1.0',
        'ub_qos_cgroup_mode{mode="v2"} 1.0',
        'ub_qos_capability{file="cpu.max"} 1.0',
        'ub_qos_remote_bytes{namespace="shop",pod="batch"} 3.145728e+06',
        'ub_qos_remote_containers{class="BE"} 1.0',
        'ub_qos_away_bytes{namespace="shop",pod="db"} 3.145728e+06',
        'ub_qos_oom_kills_total{class="HLS",namespace="shop",pod="db"} 1.0',
        'ub_qos_handler_seconds_count{method="CreateContainer"} 3.0',
    ):
        assert line in text.splitlines()
    assert re.search(r"^ub_qos_offline_quota_cpus [0-9.]+$", text, re.MULTILINE)
    with pytest.raises(CallRefused):
        runtime.peer.call("FooBar", nri_pb2.Empty(), nri_pb2.Empty)


def test_readiness_follows_the_session_and_liveness_does_not(running: int, runtime: Runtime) -> None:
    """(A7, A16)"""
    assert fetch(running, "/readyz") == (200, "ok\n")
    runtime.shut_down()
    until(lambda: fetch(running, "/readyz")[0] == 503)
    assert fetch(running, "/readyz")[1] == "not connected to the runtime\n"
    assert "ub_qos_nri_connected 0.0" in fetch(running, "/metrics")[1]
    assert fetch(running, "/healthz") == (200, "ok\n")
    runtime.listen()
    runtime.handshake(runtime.accept())
    until(lambda: fetch(running, "/readyz")[1] == "waiting for the runtime to synchronize\n")
    runtime.synchronize()
    until(lambda: fetch(running, "/readyz")[0] == 200)


def test_the_table_shows_what_runs_and_how_it_does(running: int, root: Path) -> None:
    lines = ubnode(root).splitlines()
    assert lines[0].split() == ["POD", "CLASS", "CPUS", "USED", "LIMIT", "WAITS", "THROTTLED", "MEMORY"]
    assert [line.split()[:2] for line in lines[1:4]] == [["shop/batch", "BE"], ["shop/db", "HLS"], ["shop/web", "LS"]]
    assert lines[1].endswith("N0 1.0 MiB  N2 3.0 MiB")
    assert lines[-1] == "ubsim v2.0.0: ready"


def test_a_pod_is_explained_with_reasons_and_with_what_the_files_say(running: int, root: Path) -> None:
    text = ubnode(root, "explain", "shop/db")
    assert text.startswith("shop/db: class HLS, because qos.unifiedbus.com/class=HLS\n")
    assert "  container app, when it was created: CPUs of its own: 0-1; memory near its CPUs: node 0\n" in text
    now = next(line for line in text.splitlines() if "cpuset.cpus=0-1" in line)
    assert "cpu.idle=0" in now
    until(lambda: "memory.low=4096" in ubnode(root, "explain", "shop/db"))


def test_what_a_pod_says_of_itself_cannot_steer_the_terminal(runtime: Runtime, plugin: Plugin, root: Path) -> None:
    plugin.start()
    runtime.register()
    made = pod("web", "HLS\x1b[2J\x1b[1mall is well\r")
    runtime.run_pod(made)
    runtime.create(container(made, "a\x1b[31m"))
    for text in (ubnode(root, "explain", "web"), ubnode(root)):
        assert "web" in text
        assert not re.search(r"[^\n\x20-\x7e]", text)


@pytest.mark.parametrize("seconds", ["0", "abc", "nan", "1e9"])
def test_a_pace_that_makes_no_sense_is_refused_in_plain_words(seconds: str, root: Path) -> None:
    with pytest.raises(AssertionError, match=f"'{seconds}' is not from 0.1 to 3600 seconds"):
        ubnode(root, "--watch", seconds)


def test_interrupts_on_somebodys_own_cpus_are_told(running: int, root: Path) -> None:
    """(E22)"""
    for number, name, cpus in ((7, "effective_affinity_list", "1"), (8, "effective_affinity_list", "4"), (9, "x", "0")):
        put_irq = root / "proc/irq" / str(number)
        put_irq.mkdir(parents=True)
        (put_irq / name).write_text(cpus + "\n")
        (put_irq / "smp_affinity_list").write_text("0-7\n" if name != "x" else "2-7\n")
    assert "interrupts come to its CPUs: 7 of /proc/irq" in ubnode(root, "explain", "shop/db")
    assert "interrupts" not in ubnode(root, "explain", "shop/web")
    assert "ub_qos_irqs_on_own_cpus 1.0" in fetch(running, "/metrics")[1]


def test_users_of_a_borrowed_node_are_listed_before_it_is_returned(running: int, root: Path) -> None:
    lines = ubnode(root, "node", "2", "--users").splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["POD", "CLASS", "MEMORY", "ALLOWED", "IN"],
        ["shop/batch", "BE", "3.0", "MiB", "app"],
        ["shop/db", "HLS", "3.0", "MiB", "-"],
        ["shop/web", "LS", "3.0", "MiB", "-"],
    ]
    assert lines[4:] == ["", "NUMA node 2, borrowed: 0.0 MiB of 16384.0 MiB in use, by pods and whoever else"]
    assert ubnode(root, "node", "7").splitlines()[::2] == [
        "no pod uses NUMA node 7",
        "this node has no NUMA node 7, only 0, 1, 2",
    ]


def test_the_status_socket_is_roots_alone(running: int, root: Path) -> None:
    folder = root / "run/ub-node"
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / "nri-qos.sock").stat().st_mode & 0o077 == 0
    assert (folder / "nri-qos.journal").stat().st_mode & 0o077 == 0


def test_a_status_socket_that_cannot_be_made_stops_nothing(tmp_path: Path) -> None:
    root = tmp_path / ("x" * (100 - len(str(tmp_path))))
    nodes.write(nodes.machine("0-3"), root)
    process = Plugin(root)
    with Runtime(tmp_path / "nri.sock", timeout_s=30) as runtime:
        process.start("--socket", str(tmp_path / "nri.sock"))
        try:
            runtime.register()
            process.wait_for("ubnode qos will not be answered")
        finally:
            process.end()


def test_a_node_without_the_plugin_is_a_clear_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UB_ROOT", str(root))
    with pytest.raises(NotFound, match="nri-qos does not run on this node"):
        cli.main([])


def test_without_a_journal_containers_are_decided_and_no_file_is_written(
    runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    """(B9) Nothing could be put back. Probes say so."""
    (root / "run/ub-node/nri-qos.journal").mkdir(parents=True)
    plugin.start(config={"period": 0.1, "metrics_address": "127.0.0.1:0"})
    port = plugin.wait_for("serving metrics and probes")["port"]
    runtime.register()
    made = pod("batch", "BE")
    folder = tree.pod(made)
    before = tree.everything()
    runtime.run_pod(made)
    assert runtime.create(container(made)).linux.resources.cpu.shares.value == 2
    runtime.start("batch-app-0")
    plugin.wait_for("offline work squeezed")
    until(lambda: "cgroup files are left alone" in fetch(port, "/readyz")[1])
    assert tree.everything() == before
    assert tree.read(folder, "cpu.weight") == "100"
    assert plugin.stop() == 0


def test_an_address_that_is_taken_ends_the_start_clearly(runtime: Runtime, plugin: Plugin) -> None:
    plugin.start(config={"metrics_address": "192.0.2.1:1"})
    assert plugin.process.wait(timeout=60) == 1
    assert "cannot serve metrics at 192.0.2.1:1" in plugin.log.read_text()
    plugin.start(config={"metrics_address": "nonsense"})
    assert plugin.process.wait(timeout=60) == 2


def test_every_counter_of_the_code_is_a_metric() -> None:
    used = {
        name for file in (TOP / "nri_qos").glob("*.py") for name in re.findall(r'counts\["(\w+)"', file.read_text())
    }
    assert used == metrics.COUNTERS.keys()


def test_the_guide_names_all_metrics(running: int) -> None:
    families = set(re.findall(r"^# TYPE (ub_qos_\w+?)(?:_created)? ", fetch(running, "/metrics")[1], re.MULTILINE))
    told = set(re.findall(r"`(?:ub_qos)?_(\w+)(?:\{[\w,]+\})?`", (TOP / "docs/qos.md").read_text()))
    assert {name.removeprefix("ub_qos_") for name in families} == told


def test_histograms_count_up() -> None:
    latencies = Latencies()
    for seconds in (0.0005, 0.003, 99.0):
        latencies.add("X", seconds)
    buckets, total = latencies.snapshot()["X"]
    assert len(buckets) == len(BOUNDS_S) + 1
    assert (buckets[0], buckets[2], buckets[-2], buckets[-1]) == (1, 2, 2, 3)
    assert total == pytest.approx(99.0035)


def test_memory_by_node_counts_bytes_of_whatever_nodes_there_are() -> None:
    """(D24, E14)"""
    text = "anon N0=100 N3=8192\nfile N0=1\nkernel_stack N0=77\nshmem N3=4096\n"
    assert counters.memory_by_node(text) == {0: 101, 3: 8192}
    assert counters.memory_by_node("") == {}


def sample(**values: Any) -> counters.Counters:
    return counters.Counters(**values)


def test_counters_that_went_backwards_have_no_rate() -> None:
    before, after = sample(at=1.0, usage=500, waited=10), sample(at=2.0, usage=400, waited=5)
    assert counters.rates(before, after) == counters.Rates()
    assert counters.rates(None, after) == counters.Rates()
    assert counters.rates(after, after) == counters.Rates()


def test_waiting_for_ones_own_limit_is_not_waiting_for_others() -> None:
    before = sample(at=1.0, usage=0, waited=0, throttled=0, throttles=0)
    after = sample(at=2.0, usage=500_000, waited=400_000, throttled=300_000, throttles=3)
    got = counters.rates(before, after)
    assert (got.usage, round(got.waiting or 0, 6), got.is_throttled) == (0.5, 0.1, True)


def test_the_table_is_shown_again_until_one_has_seen_enough(running: int, root: Path) -> None:
    folder = os.environ.get("UB_BIN_DIR")
    command = [str(Path(folder, "ubnode"))] if folder else [sys.executable, "-m", "ubnode"]
    command = ["env", "--default-signal=INT", *command, "qos", "--watch", "0.1"]  # whoever started us may ignore it
    with subprocess.Popen(command, env=environment(root), cwd=TOP, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout
        heads = (line for line in watching.stdout if line.startswith("POD "))
        assert [next(heads).split()[0] for _ in range(3)] == ["POD"] * 3
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
    assert watching.returncode == 0


def test_what_a_pod_was_given_is_explained(runtime: Runtime, plugin: Plugin, tree: Tree, root: Path) -> None:
    plugin.start(config={"period": 0.1})
    runtime.register()
    made = pod("given", "BE")
    (root / "run/ub-node/zerocopy/pods" / made.id).mkdir(parents=True)
    run(runtime, tree, made)
    assert "its pod was given /run/ub UB_PATHS" in ubnode(root, "explain", "given")


def test_who_is_kept_off_borrowed_memory_is_told_why(runtime: Runtime, plugin: Plugin, tree: Tree, root: Path) -> None:
    plugin.start(config={"period": 0.1, "remote_budget": {"pod": "1Mi"}})
    runtime.register()
    batch, inner = start_pod(runtime, tree, "batch", "BE")
    tree.write(batch, "memory.numa_stat", "anon N2=2000000")
    until(lambda: tree.read(inner, "cpuset.mems") == "0-1")
    assert "kept off borrowed memory" in ubnode(root, "explain", "batch")

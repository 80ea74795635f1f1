"""One arm of bench.qos: an online service with a fixed schedule, and what offline neighbours do to its latency.

    python3 -m e2e.inside.colocation alone|unmanaged|managed SECONDS     one line of JSON

The service is open loop: requests come every ``PERIOD_S`` whatever happens, each costs ``WORK_S`` of CPU, and latency
counts from when a request was due. Its pod asks for one whole CPU; four offline pods spin.

Source of the method: reference/nri.md section 6.3; it is Schroeder's open-loop rule ("Open Versus Closed", NSDI '06).
"""

import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from e2e.inside.cri import Container, Resources, Runtime, import_images
from e2e.inside.programs import daemon, wait_until

WORK_S, PERIOD_S = 0.012, 0.020  # 60 % of one CPU
WARM_UP_S = 3.0
SPINNERS = 4
CLASS = "qos.unifiedbus.com/class"
ONLINE = Resources(cpu_request_m=1000, cpu_limit_m=1000, memory_limit=128 << 20)
OFFLINE = Resources(cpu_request_m=500, cpu_limit_m=0)
FOLDER = Path("/var/tmp/colocation")
# Python of the node, mounted into the container: the pods' image has only busybox.
SYSTEM = {Path("/usr"): "/usr", Path("/usr/lib"): "/lib", Path("/usr/lib64"): "/lib64"}


def serve(seconds: float) -> list[float]:
    """Serve the schedule; return latencies in ms, without those of the warm-up."""
    begin = time.monotonic() + 0.1
    latencies: list[float] = []
    for number in range(int((seconds + WARM_UP_S) / PERIOD_S)):
        due = begin + number * PERIOD_S
        if (early := due - time.monotonic()) > 0:
            time.sleep(early)
        until = time.thread_time() + WORK_S
        while time.thread_time() < until:
            pass
        if number * PERIOD_S >= WARM_UP_S:
            latencies.append((time.monotonic() - due) * 1e3)
    return sorted(latencies)


def weigh_as_the_kubelet_does(pod_slice: Path, resources: Resources) -> None:
    """Give a pod's cgroup, and the one of its QoS class, the weight of its CPU request; CRI leaves that to kubelet."""
    weight = 1 + (max(2, resources.cpu_request_m * 1024 // 1000) - 2) * 9999 // 262142
    (pod_slice / "cpu.weight").write_text(str(weight))
    if resources is OFFLINE:
        (pod_slice.parent / "cpu.weight").write_text(str(weight * SPINNERS))


def start(runtime: Runtime, name: str, qos: str, resources: Resources, *command: str) -> Container:
    pod = runtime.run_pod(name, annotations={CLASS: qos}, resources=resources, host_network=True)
    mounts = {**SYSTEM, FOLDER: "/results"}
    container = runtime.run_container(pod, *command, mounts=mounts, resources=resources)
    weigh_as_the_kubelet_does(container.cgroup.parent, resources)
    return container


def cpu_seconds(container: Container, key: str = "usage_usec") -> float:
    stat = dict(line.split() for line in container.knob("cpu.stat").splitlines())
    return int(stat[key]) / 1e6


def arm(name: str, seconds: float) -> dict[str, object]:
    FOLDER.mkdir(exist_ok=True)
    for left in FOLDER.glob("*.json"):
        left.unlink()
    (FOLDER / "colocation.py").write_text(Path(__file__).read_text())
    import_images()
    runtime = Runtime()
    runtime.wait_until_ready()
    with ExitStack() as running:
        if name == "managed":
            plugin = running.enter_context(daemon("nri-qos", env={"UB_ROOT": "/"}))
            plugin.wait_for("synchronized with the runtime")
        running.callback(runtime.remove_all)
        spin = ("sh", "-c", "while :; do :; done")
        count = 0 if name == "alone" else SPINNERS
        offline = [start(runtime, f"offline{number}", "BE", OFFLINE, *spin) for number in range(count)]
        service = ("/usr/bin/python3", "-I", "/results/colocation.py", "serve", str(seconds))
        online = start(runtime, "online", "HLS", ONLINE, *service)
        before = sum(cpu_seconds(container) for container in offline)
        answer = FOLDER / "latencies.json"
        wait_until(answer.exists, "the service is done", seconds * 20 + 60)
        used = sum(cpu_seconds(container) for container in offline) - before
        latencies: list[float] = json.loads(answer.read_text())
        return {
            "arm": name,
            "requests": len(latencies),
            **{f"p{share}": round(latencies[int(len(latencies) * float(share) / 100)], 2) for share in ("50", "99")},
            "max": round(latencies[-1], 2),
            "offline_cpus": round(used / (seconds + WARM_UP_S), 2),
            "online_cpus": online.knob("cpuset.cpus") or "any",
            "throttled_s": cpu_seconds(online, "throttled_usec"),
        }


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        measured = Path("/results/new")
        measured.write_text(json.dumps(serve(float(sys.argv[2]))))
        measured.rename("/results/latencies.json")
    else:
        print(json.dumps(arm(sys.argv[1], float(sys.argv[2]))))

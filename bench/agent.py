"""What ub-agent costs at rest, and how soon it tells kubelet of a change, on a simulated node with eight devices.

Prints a table and ends with ``ratio R``: the share of a core at rest over the budget of 0.2 %. The agent is the built
one if ``UB_BIN_DIR`` names its folder. Figures are of the agent; nothing here is a figure of UB hardware.

    PYTHONPATH=.:proto python -m bench.agent [SECONDS]
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ubsim.handles import SuperNodeHandle, running
from ubsim.kubelet import Kubelet

BUDGET_PERCENT, BUDGET_MIB = 0.2, 80.0
DEVICES, FLIPS = 8, 20
NAME = "unifiedbus.com/ub_net_device"
SCENARIO = f"name: bench\nnodes: [{{name: node, count: 2, devices: {DEVICES}}}]\n"
CONFIGURATION = {"metrics_address": "127.0.0.1:19479", "conf": {"mode": "conflist"}}
CONFLIST = {"cniVersion": "1.0.0", "name": "k8s", "plugins": [{"type": "bridge"}]}


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    folder = Path(tempfile.mkdtemp(prefix="ub-"))
    try:
        (folder / "scenario.yaml").write_text(SCENARIO)
        (folder / "agent.yaml").write_text(json.dumps(CONFIGURATION))
        with running(folder / "scenario.yaml", folder / "up") as supernode:
            return measure(supernode, folder, seconds)
    finally:
        shutil.rmtree(folder)


def measure(supernode: SuperNodeHandle, folder: Path, seconds: float) -> int:
    node = supernode["node0"]
    (node.root / "etc/cni/net.d").mkdir(parents=True)
    (node.root / "etc/cni/net.d/10-k8s.conflist").write_text(json.dumps(CONFLIST))
    kubelet = Kubelet(node.root / "var/lib/kubelet")
    kubelet.start()
    begun = time.monotonic()
    with (folder / "agent.log").open("wb") as log:
        command = [*executable(), "--config", str(folder / "agent.yaml")]
        agent = subprocess.Popen(command, env={**os.environ, **node.environ}, stderr=log)
    try:
        kubelet.wait_for(NAME, healthy=DEVICES)
        started = time.monotonic() - begun
        time.sleep(5)
        percent = share_of_a_core(agent.pid, seconds)
        memory = resident_mib(agent.pid)
        delays = [flip(supernode, kubelet, number) for number in range(FLIPS)]
    finally:
        agent.terminate()
        agent.wait()
        kubelet.stop()
    print(f"ub-agent, {DEVICES} devices, stand-in; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs\n")
    print(f"{'':<44}{'measured':>10}{'budget':>10}")
    print(f"{f'at rest for {seconds:.0f} s, % of a core':<44}{percent:>10.3f}{BUDGET_PERCENT:>10.1f}")
    print(f"{'resident memory, MiB':<44}{memory:>10.1f}{BUDGET_MIB:>10.0f}")
    print(f"{'start until kubelet has the devices, s':<44}{started:>10.2f}{'':>10}")
    print(f"{'EID lost or back until kubelet knows, p50, s':<44}{statistics.median(delays):>10.3f}{'':>10}")
    print(f"{f'the same, longest of {FLIPS}, s':<44}{max(delays):>10.3f}{1.0:>10.1f}")
    print(f"\nratio {percent / BUDGET_PERCENT:.2f}")
    return 0


def executable() -> list[str]:
    built = os.environ.get("UB_BIN_DIR")
    return [str(Path(built, "ub-agent"))] if built else [sys.executable, "-m", "cni_ub.agent"]


def share_of_a_core(pid: int, seconds: float) -> float:
    before, begun = cpu_ns(pid), time.monotonic_ns()
    time.sleep(seconds)
    return 100 * (cpu_ns(pid) - before) / (time.monotonic_ns() - begun)


def cpu_ns(pid: int) -> int:
    """Time of all threads on a CPU; the ticks of /proc/PID/stat are too coarse for an idle daemon."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


def flip(supernode: SuperNodeHandle, kubelet: Kubelet, number: int) -> float:
    """Lose an EID, or give it back; return the seconds until kubelet knows."""
    time.sleep(0.37)  # at another moment of the agent's second each time
    lost = number % 2 == 0
    begun = time.monotonic()
    supernode["node0"].order("eid", device="udma2", index=0, lost=lost)
    kubelet.wait_for(NAME, healthy=DEVICES - 1 if lost else DEVICES)
    return time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(main())

"""Many pods at once, and what a reboot in their middle leaves: run by the tests outside, which pull the plug.

python3 -m e2e.inside.burst start 50        a node with 50 devices; 50 pods at once, each with one; stays until killed
python3 -m e2e.inside.burst recover 50      after the reboot: as the kubelet does, remove what is dead, then 50 again
"""

import contextlib
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from ubproto.runtime.v1 import runtime_pb2 as pb

from e2e.inside.cri import CALL_S, Runtime, import_images
from e2e.inside.host import Belongings, admit, agent_and_kubelet, attachments, simulated_host
from e2e.inside.network import BRIDGE, install_plugin, reserved_addresses, write_conflist
from e2e.inside.programs import BUNDLE
from ubsim.kubelet import Kubelet

AT_ONCE = 8  # sandboxes in flight; a kubelet starts as many as its cores can
PROGRESS = Path("/tmp/results/burst")


def node() -> Runtime:
    """Make the node ready for pods."""
    PROGRESS.mkdir(parents=True, exist_ok=True)
    install_plugin("ub-cni", BUNDLE / "ub-cni")
    write_conflist(BRIDGE, {"type": "ub-cni"})
    runtime = Runtime()
    runtime.wait_until_ready()
    return runtime


def run_burst(runtime: Runtime, kubelet: Kubelet, count: int, stem: str) -> float:
    """Run ``count`` pods with a device each, all at once; return how long it took, in seconds."""

    def one(number: int) -> None:
        name = f"{stem}{number}"
        runtime.run_pod(name)
        (PROGRESS / name).touch()

    for number in range(count):
        admit(kubelet, f"{stem}{number}")
    started = time.monotonic()
    with ThreadPoolExecutor(max_workers=AT_ONCE) as workers:
        list(workers.map(one, range(count)))
    return time.monotonic() - started


def start(count: int) -> None:
    import_images()
    runtime = node()
    with simulated_host(count), agent_and_kubelet(count) as kubelet:
        report(seconds=run_burst(runtime, kubelet, count, "before"))
        time.sleep(3600)  # until the plug is pulled


def recover(count: int) -> None:
    """Do what a kubelet does after a reboot, and report what is left at each stage."""
    runtime = node()
    with simulated_host(count):
        dead = runtime.stub.ListPodSandbox(pb.ListPodSandboxRequest(), timeout=CALL_S).items
        held = len(attachments())
        # containerd gives a sandbox its network before it writes down that there is one: of those in flight it knows
        # nothing after the cut, so nobody calls DEL for them, nor GC, which it does not have. Ours the agent finds by
        # itself; of host-local nobody does. All else must be as before all pods.
        known = {sandbox.id for sandbox in dead}
        forgotten = {address for address, container in reserved_addresses().items() if container not in known}
        fresh = replace(Belongings.now(), addresses=forgotten, ledger=set(), namespaces=set())
        with agent_and_kubelet(count) as kubelet:
            for pod in list(kubelet.pods):
                kubelet.remove(pod)
            with ThreadPoolExecutor(max_workers=AT_ONCE) as workers:
                list(workers.map(runtime.forget_pod, [sandbox.id for sandbox in dead]))
            after_removal = Belongings.now()
            seconds = run_burst(runtime, kubelet, count, "after")
            holders = {holder["pod"]: holder["device"] for holder in attachments()}
            addresses = {pod.ip for pod in runtime.pods.values()}
            runtime.remove_all()
            after_all = Belongings.now()
        report(
            dead=len(dead),
            held=held,
            forgotten=sorted(forgotten),
            leaked_by_reboot=after_removal.differs_from(fresh),
            seconds=seconds,
            devices=len(set(holders.values())),
            addresses=len(addresses),
            leaked_by_burst=after_all.differs_from(fresh),
        )


def report(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        {"start": start, "recover": recover}[sys.argv[1]](int(sys.argv[2]))

"""A pod whose network offers SMC, from the command line of a guest: made by containerd, ub-cni and nri-qos alone.

    python3 -m e2e.inside.zerocopy prepare FIRST     the node: preload library, network (pods' addresses from FIRST on)
    python3 -m e2e.inside.zerocopy anchor            a pod of the network, so that the node is part of it; stays
    python3 -m e2e.inside.zerocopy serve PORT        a server in a host-network pod, its sockets SMC's; prints the rate
    python3 -m e2e.inside.zerocopy send HOST PORT    a client in a pod of the network; prints what SMC diag says of it

The programs are ordinary TCP ones, and a container has the node's own Python: mounts of /usr. Servers are in
host-network pods because soft-RoCE, which stays in the first namespace, finds no route from an address that only
another namespace has; a client needs none.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from e2e.inside.cri import Container, Pod, Runtime, import_images
from e2e.inside.network import in_netns, install_plugin, write_conflist
from e2e.inside.pods import USR
from e2e.inside.programs import BUNDLE, RESULTS, daemon, wait_until

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/libsmc-preload.so")
DROP_IN = Path("/run/systemd/system/containerd.service.d/real.conf")
PAYLOAD = Path("/mnt/payload")
MOUNTS = {**USR, PAYLOAD / "e2e": "/e2e"}
STREAM = ("/usr/bin/python3", "-m", "e2e.inside.stream")
SECONDS = "3"
HOLD_S = 5.0  # so long the client goes on after it was looked at, for the counters of the RDMA device


def prepare(first: str) -> None:
    """Make the node one with real devices: nothing is simulated here, not even for containerd's plugins."""
    subprocess.run(["modprobe", "-a", "smc", "smc_diag", "macvlan"], check=True)
    source = PAYLOAD / "e2e/inside/preload.c"
    subprocess.run(["tcc", "-shared", "-nostdlib", "-o", LIBRARY, source], check=True)
    DROP_IN.parent.mkdir(parents=True)
    DROP_IN.write_text("[Service]\nEnvironment=UB_ROOT=/\n")
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    subprocess.run(["systemctl", "restart", "containerd"], check=True)
    import_images()
    install_plugin("ub-cni", BUNDLE / "ub-cni")
    ranges = [[{"subnet": "10.9.0.0/24", "rangeStart": first}]]
    macvlan = {"type": "macvlan", "master": "eth0", "ipam": {"type": "host-local", "ranges": ranges}}
    ours = {"type": "ub-cni", "deviceID": "rxe0", "isolation": "shared", "netdev": "none"}
    write_conflist(macvlan, {**ours, "zeroCopy": {"sockets": "smc"}})


def run_program(runtime: Runtime, pod: Pod, *arguments: str, env: dict[str, str] | None = None) -> Container:
    return runtime.run_container(pod, *STREAM, *arguments, mounts=MOUNTS, env=env)


def serve(port: str) -> None:
    runtime = Runtime()
    pod = runtime.run_pod("server", host_network=True)
    server = run_program(runtime, pod, "receive", port, SECONDS, env={"LD_PRELOAD": str(LIBRARY)})
    wait_until(lambda: not Path(f"/proc/{server.pid}").exists(), "the server is done", 240)
    (log,) = Path("/var/log/pods").glob("default_server_*/main.log")
    print(log.read_text().split(" ", 3)[3])
    runtime.remove_all()


def send(host: str, port: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    runtime = Runtime()
    with daemon("nri-qos", env={"UB_ROOT": "/"}) as qos:
        qos.wait_for("synchronized with the runtime")
        pod = runtime.run_pod("client")
        told = json.loads((Path("/run/ub-node/zerocopy/pods") / pod.id / "paths.json").read_text())
        client = run_program(runtime, pod, "send", host, port)
        environ = Path(f"/proc/{client.pid}/environ").read_text().split("\0")
        command = ("env", "PYTHONPATH=/mnt/payload", sys.executable, "-m", "e2e.inside.smc", "show")
        connections: list[dict[str, object]] = []

        def is_connected() -> bool:
            connections[:] = json.loads(in_netns(pod.netns, *command))
            return any(connection["state"] == 1 for connection in connections)  # SMC_ACTIVE

        wait_until(is_connected, "the client is connected", 120)
        time.sleep(HOLD_S)
        print(json.dumps({"connections": connections, "environ": environ, "told": told}))
        runtime.remove_all()


def anchor() -> None:
    Runtime().run_pod("anchor")
    print("anchored", flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    verbs: dict[str, Callable[..., None]] = {"prepare": prepare, "anchor": anchor, "serve": serve, "send": send}
    verbs[verb](*arguments)

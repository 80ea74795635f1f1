"""``make demo``: a two-node super-node on this machine, told as a story of commands and what they print.

Two simulated nodes in network namespaces, two pods attached by ``ub-cni``, a ping between them over the UB netdevs, a
file shared through ``ub-csi``, QoS decisions of ``nri-qos``. Everything is taken down at the end, after ^C, and after
any failure. What is shown is simulated: it proves that the parts work together, and says nothing of UB's speed.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ubhost.errors import HostFault, UbError
from ubsim import named_netns
from ubsim.demo_volume import Driver, driver, shared_volume
from ubsim.handles import NodeHandle, running

HERE = Path(__file__).parent
SCENARIO = HERE / "scenarios" / "demo.yaml"
PODS = HERE / "demo_pods.yaml"
NETWORK = {"cniVersion": "1.1.0", "name": "ub", "type": "ub-cni", "mode": "main", "deviceID": "urma_1"}
MODULES = {"ub-cni": "cni_ub", "ub-csi": "csi_ub", "ubnode": "ubnode"}
STEP_TIMEOUT_S = 120.0


def executable(name: str) -> list[str]:
    """Return how ``name`` is started: the built one if ``UB_BIN_DIR`` names its folder, else the sources."""
    built = os.environ.get("UB_BIN_DIR")
    return [f"{built}/{name}"] if built else [sys.executable, "-m", MODULES[name]]


@dataclass(frozen=True, slots=True)
class Pod:
    """What the container runtime knows of a pod sandbox."""

    name: str
    netns: Path
    node: NodeHandle


def say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def tell(text: str) -> None:
    say("", f"== {text}")


def show(typed: str, output: str = "") -> None:
    """Print a command as a user would type it, and what it printed."""
    say(f"$ {typed}", *(f"  {line}".rstrip() for line in output.rstrip().splitlines()))


def run(arguments: Sequence[str], environ: Mapping[str, str], *, given: str = "") -> str:
    """Run a program; return what it printed.

    Raises:
        HostFault: it failed; its last words are told.
    """
    done = subprocess.run(
        arguments,
        env={**os.environ, **environ},
        input=given,
        capture_output=True,
        text=True,
        timeout=STEP_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise HostFault(f"{shlex.join(arguments)} failed: {(done.stdout + done.stderr).strip()[-500:]}")
    return done.stdout


def show_node(node: NodeHandle) -> None:
    show(f"UB_ROOT={node.root} ubnode show", run([*executable("ubnode"), "show"], node.environ))


@contextmanager
def pod_sandbox(name: str, folder: Path, node: NodeHandle) -> Iterator[Pod]:
    netns = folder / name
    named_netns.make(netns)
    try:
        yield Pod(name, netns, node)
    finally:
        named_netns.remove(netns)


def call_cni(verb: str, pod: Pod) -> str:
    """Call ``ub-cni`` as a runtime on ``pod``'s node would."""
    environ = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": pod.name,
        "CNI_NETNS": str(pod.netns),
        "CNI_IFNAME": "ub0",
        "CNI_PATH": "/opt/cni/bin",
        "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=demo;K8S_POD_NAME={pod.name}",
    }
    enter = ["nsenter", f"--net={pod.node.netns}"]
    return run([*enter, *executable("ub-cni")], {**environ, **pod.node.environ}, given=json.dumps(NETWORK))


@contextmanager
def attached(pod: Pod) -> Iterator[str]:
    """Attach ``pod`` while the body runs; the value is its address."""
    result: dict[str, Any] = json.loads(call_cni("ADD", pod))
    typed = f"CNI_COMMAND=ADD CNI_CONTAINERID={pod.name} UB_ROOT={pod.node.root} … ub-cni <<< '{json.dumps(NETWORK)}'"
    show(typed, json.dumps(result))
    try:
        yield result["ips"][0]["address"].partition("/")[0]
    finally:
        call_cni("DEL", pod)


def ping(source: Pod, address: str) -> None:
    arguments = ["nsenter", f"--net={source.netns}", "ping", "-6", "-c", "3", "-i", "0.2", address]
    show(f"nsenter --net={source.netns} ping -6 -c 3 {address}", run(arguments, {}))


def share_a_file(first: Driver, second: Driver) -> None:
    with shared_volume(first, second) as volume:
        note = "written on node0, read on node1\n"
        (first.target / "note.txt").write_text(note)
        show(f"echo '{note.strip()}' > {first.target}/note.txt")
        read = (second.target / "note.txt").read_text()
        show(f"cat {second.target}/note.txt", read)
        if read != note:
            raise HostFault(f"volume {volume.volume_id}: node1 read {read!r}")


def play(folder: Path) -> None:
    """Tell the whole story below ``folder``, which is empty before and after."""
    with ExitStack() as stack:
        tell("A super-node of two simulated nodes, each in a network namespace of its own")
        supernode = stack.enter_context(running(SCENARIO, folder / "sim"))
        first, second = supernode["node0"], supernode["node1"]
        show_node(first)

        tell("Two pods, one on each node: ub-cni gives each a URMA device, its EIDs, and its netdev with IP == EID")
        pods = [
            stack.enter_context(pod_sandbox(name, folder / "pods", node))
            for name, node in (("red", first), ("blue", second))
        ]
        addresses = [stack.enter_context(attached(pod)) for pod in pods]
        attachments = run([*executable("ubnode"), "attachments"], first.environ)
        show(f"UB_ROOT={first.root} ubnode attachments", attachments)

        tell("Over the UB netdevs the pods reach one another")
        ping(pods[0], addresses[1])

        tell("One volume on both nodes: ub-csi, access mode MULTI_NODE_MULTI_WRITER")
        drivers = [stack.enter_context(driver(executable("ub-csi"), node)) for node in (first, second)]
        share_a_file(*drivers)

        tell(
            "What nri-qos would do with three pods on node0: latency-sensitive ones keep CPUs, batch takes what is left"
        )
        plan = run([*executable("ubnode"), "qos", "plan", "-f", str(PODS)], first.environ)
        show(f"UB_ROOT={first.root} ubnode qos plan -f {PODS.name}", plan)

        tell("Taking everything down")
    say("done; the times above are this machine's, never UB's")


def _interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    """Play; return 0, 1 after a failure, 130 after ^C. In each case everything is taken down first."""
    signal.signal(signal.SIGTERM, _interrupted)
    folder = Path(tempfile.mkdtemp(prefix="ub-demo-"))
    (folder / "pods").mkdir()
    try:
        play(folder)
    except UbError as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\ndemo: stopped; everything was taken down\n")
        return 130
    finally:
        (folder / "pods").rmdir()
        folder.rmdir()
    return 0


if __name__ == "__main__":
    sys.exit(main())

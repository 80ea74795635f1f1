"""A simulated node, and ub-cni called on it as a runtime calls it: the executable, an environment, stdin, stdout.

Everything is real but the driver: processes, namespaces, netdevs, sockets. ``UB_BIN_DIR`` names the folder of the
built executables; without it the sources run.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cni_ub.machine import BUNDLE, EXECUTABLE, REPOSITORY, Answer, Ipam, ip
from tests.waiting import wait_for
from ubhost import providers
from ubhost.kernel.rtnl import Rtnl
from ubhost.model import Link
from ubhost.provider import Bandwidth
from ubhost.roots import Roots
from ubsim import control, supernode

SCENARIO = "name: black-box\nnodes:\n  - {name: node0, devices: %d}\n"
AGENT = [str(Path(BUNDLE, "ub-agent"))] if BUNDLE else [sys.executable, "-m", "cni_ub.agent"]


@dataclass(slots=True)
class Call:
    """A call that was started."""

    process: "subprocess.Popen[bytes]"

    def wait(self, seconds: float = 180) -> Answer:
        stdout, self.stderr = self.process.communicate(timeout=seconds)
        return Answer(self.process.returncode, stdout)

    stderr: bytes = b""


@dataclass(slots=True)
class SimulatedNode:
    """Node ``node0`` of a super-node below ``folder``, with devices ``urma_1`` …, and maybe an agent."""

    folder: Path
    devices: int
    agent: "subprocess.Popen[bytes] | None" = None
    ipam: Ipam = field(init=False)
    pods: list[str] = field(default_factory=list)

    @classmethod
    def up(cls, folder: Path, devices: int, more: str = "") -> "SimulatedNode":
        """Start it; ``more`` are further lines of its scenario."""
        folder.mkdir(exist_ok=True)
        scenario = folder / "scenario.yaml"
        scenario.write_text(SCENARIO % devices + more)
        supernode.up(scenario, folder / "up")
        node = cls(folder, devices)
        node.ipam = Ipam(folder / "ipam")
        return node

    def down(self) -> None:
        self.stop_agent()
        for pod in list(self.pods):
            self.kill_pod(pod)
        supernode.down(self.folder / "up")

    @property
    def root(self) -> Path:
        return self.folder / "up/node0"

    # The agent

    @property
    def agent_environ(self) -> dict[str, str]:
        return {**os.environ, "UB_ROOT": str(self.root), "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'proto'}"}

    def start_agent(self) -> None:
        with (self.folder / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(AGENT, env=self.agent_environ, stderr=log)
        wait_for(Roots(self.root).agent_socket.exists)

    def stop_agent(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.agent:
            self.agent.send_signal(number)
            self.agent.wait(timeout=120)
            self.agent = None

    # Calls

    def start(
        self, verb: str, conf: Mapping[str, Any] | bytes | None, *, pod: str = "", container: str = "c1",
        ifname: str = "net1", **environ: str | None,
    ) -> Call:  # fmt: skip
        variables: dict[str, str | None] = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": pod,
            "CNI_IFNAME": ifname,
            "CNI_PATH": f"{self.ipam.folder}:/usr/lib/cni",
            "PATH": os.environ["PATH"],
            "UB_ROOT": str(self.root),
            "PYTHONPATH": str(REPOSITORY),
            **environ,
        }
        given = {key: value for key, value in variables.items() if value is not None}
        process = subprocess.Popen(
            EXECUTABLE,
            env=given,
            stdin=subprocess.PIPE if conf is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        if process.stdin:
            with suppress(BrokenPipeError), process.stdin:  # it may refuse its variables before it reads
                process.stdin.write(conf if isinstance(conf, bytes) else json.dumps(conf).encode())
            process.stdin = None
        return Call(process)

    def call(self, verb: str, conf: Mapping[str, Any] | bytes | None, **keys: Any) -> Answer:
        return self.start(verb, conf, **keys).wait()

    def conf(self, device: str | None = "urma_1", **keys: Any) -> dict[str, Any]:
        base = {"cniVersion": "1.1.0", "name": "ubnet", "type": "ub-cni", "ipam": {"type": "obedient"}}
        return base | ({"deviceID": device} if device else {}) | keys

    def obey_no_more(self) -> None:
        """Forget every order that a test gave to the driver and to IPAM."""
        control.order(self._control, {"do": "clear"})
        self.ipam.obey_no_more()
        (self.ipam.folder / "calls").unlink(missing_ok=True)
        self.ipam.renew()

    def repair(self) -> None:
        """Release what a test left behind, in the way an administrator does."""
        environ = {**os.environ, "UB_ROOT": str(self.root), "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'proto'}"}
        command = [sys.executable, "-m", "ubnode", "attachments", "--repair"]
        subprocess.run(command, env=environ, check=False, stdout=subprocess.DEVNULL)

    def happen(self, do: str, **what: object) -> None:
        """Give the simulator an order, such as to unplug a device."""
        control.order(self._control, {"do": do, **what})

    def take_away(self, member: str, pod: str) -> None:
        """Un-expose a kernel device behind the plugin's back."""
        with Path(pod).open("rb") as netns:
            providers.choose(Roots(self.root)).unexpose(member, netns.fileno())

    # The world

    def new_pod(self, name: str) -> str:
        ip(f"netns add {name}")
        ip(f"-n {name} link set lo up")
        self.pods.append(name)
        return f"/run/netns/{name}"

    def kill_pod(self, name: str) -> None:
        ip(f"netns del {name}")
        self.pods.remove(name)

    def fault(self, operation: str, **keys: Any) -> None:
        control.order(self._control, {"do": "fail", "operation": operation, **keys})

    @property
    def _control(self) -> Path:
        return Roots(self.root).simulator / "control.sock"

    def exposed(self) -> dict[str, int]:
        """Return in how many pods each device is."""
        return {device["name"]: device["exposed"] for device in self._devices()}

    def held(self) -> list[str]:
        """Return the devices that UBSE has given out."""
        return [device["name"] for device in self._devices() if device["held"]]

    def limits(self) -> dict[str, Bandwidth]:
        provider = providers.choose(Roots(self.root))
        return {f"urma_{n}": provider.bandwidth(f"urma_{n}") for n in range(1, self.devices + 1)}

    def pending(self) -> list[str]:
        """Return the attachments whose release is not finished, after one more try."""
        self.repair()
        return self.ledger

    def _devices(self) -> list[dict[str, Any]]:
        status = control.order(self._control, {"do": "status"})
        return list(status["devices"])

    def netdevs(self) -> dict[str, tuple[Any, ...]]:
        """Return the devices' netdevs on the host, with what a pod may have changed."""
        with Rtnl() as host:
            mine = [link for link in host.links() if link.name.startswith("ipourma")]
            return {k.name: (k.mtu, k.mac, k.alias, k.qlen, k.is_up, k.altnames, host.addresses(k.index)) for k in mine}

    @property
    def ledger(self) -> list[str]:
        folder = Roots(self.root).state / "attachments"
        return sorted(file.name for file in folder.iterdir()) if folder.exists() else []

    def record(self) -> Path:
        """Return the file of the only attachment."""
        (file,) = (Roots(self.root).state / "attachments").iterdir()
        return file

    def state(self) -> tuple[Any, ...]:
        return self.exposed(), self.netdevs(), self.ledger, self.held(), self.limits()

    def link_in(self, pod: str, name: str) -> Link | None:
        with Path(pod).open("rb") as netns, Rtnl(netns.fileno()) as rtnl:
            return rtnl.link(name)

    def eids_in(self, pod: str) -> set[str]:
        with Path(pod).open("rb") as netns:
            return {str(slot.eid) for slot in providers.choose(Roots(self.root)).visible(netns.fileno())}

    def names_in(self, pod: str) -> set[str]:
        with Path(pod).open("rb") as netns, Rtnl(netns.fileno()) as rtnl:
            return {link.name for link in rtnl.links()}


def attach(node: SimulatedNode, pod: str, **keys: Any) -> dict[str, Any]:
    """ADD, which must succeed: return the result. Keys are the call's own, or of its configuration."""
    where = {key: keys.pop(key) for key in ("container", "ifname") if key in keys}
    answer = node.call("ADD", node.conf(**keys), pod=pod, **where)
    assert answer.code == 0, answer
    document: dict[str, Any] = answer.document
    return document

"""A small machine to run ub-cni on: real namespaces and links, a provider in memory, an IPAM plugin that obeys.

``Machine.call`` is one CNI call as a runtime makes it; the answer is what a runtime would see.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cni_ub import engine
from cni_ub.host import Host, Stop
from ubhost.errors import HostFault
from ubhost.kernel.rtnl import Rtnl
from ubhost.ledger import Ledger
from ubhost.model import Link
from ubhost.roots import Roots
from ubsim.fakes import FakeProvider, fake_devices

REPOSITORY = Path(__file__).parents[2]
BUNDLE = os.environ.get("UB_BIN_DIR")
EXECUTABLE = [str(Path(BUNDLE, "ub-cni"))] if BUNDLE else [sys.executable, "-m", "cni_ub"]

OBEDIENT_IPAM = """#!/bin/sh
# Logs each call, and does what files in its folder tell: sleep-VERB (seconds), answer-VERB, fail-VERB (exit 1).
here=${0%/*}
conf=$(cat)
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME" >> "$here/calls"
env > "$here/environ-$CNI_COMMAND"
printf '%s' "$conf" > "$here/stdin-$CNI_COMMAND"
[ -f "$here/sleep-$CNI_COMMAND" ] && sleep "$(cat "$here/sleep-$CNI_COMMAND")"
if [ -f "$here/fail-$CNI_COMMAND" ]; then cat "$here/fail-$CNI_COMMAND"; exit 1; fi
if [ -f "$here/answer-$CNI_COMMAND" ]; then cat "$here/answer-$CNI_COMMAND"; exit 0; fi
case $CNI_COMMAND in
ADD) echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.77.0.5/24", "gateway": "10.77.0.1"}],
            "routes": [{"dst": "10.99.0.0/16"}], "dns": {"nameservers": ["10.77.0.1"]}}' ;;
VERSION) echo '{"cniVersion": "1.1.0",
                "supportedVersions": ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]}' ;;
esac
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a runtime sees of one call."""

    code: int
    stdout: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.stdout)

    @property
    def error(self) -> tuple[int, str]:
        assert self.code == 1, self.stdout
        return self.document["code"], self.document["msg"]


@dataclass(slots=True)
class Ipam:
    """The obedient IPAM plugin in a folder of its own."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.renew()

    def renew(self) -> None:
        """Install it anew: what was learnt of its versions is no longer true."""
        plugin, new = self.folder / "obedient", self.folder / "new"
        new.write_text(OBEDIENT_IPAM)
        new.chmod(0o755)
        new.replace(plugin)

    def order(self, what: str, verb: str, content: str = "") -> None:
        (self.folder / f"{what}-{verb}").write_text(content)

    def obey_no_more(self) -> None:
        for pattern in ("sleep-*", "fail-*", "answer-*"):
            for file in self.folder.glob(pattern):
                file.unlink()

    @property
    def calls(self) -> list[str]:
        log = self.folder / "calls"
        return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


class FailsAt(Stop):
    """Lets a call go up to its ``number``-th step, which fails; looked at before every step."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left = number
        self.has_fired = False
        self._lock = threading.Lock()

    def check(self) -> None:
        with self._lock:
            self.left -= 1
            if self.left >= 0:
                return
        self.has_fired = True
        raise HostFault("refused on purpose")


@dataclass(slots=True)
class Machine:
    """One host with devices ``urma_1`` and ``urma_2`` whose netdevs are ``ipourma1`` and ``ipourma2``."""

    root: Path
    provider: FakeProvider
    ipam: Ipam
    stop: Stop = field(default_factory=Stop)
    pods: list[str] = field(default_factory=list)
    monitor: "subprocess.Popen[str] | None" = None

    @classmethod
    def build(cls, root: Path, devices: int = 2) -> "Machine":
        provider = FakeProvider(fake_devices(devices))
        machine = cls(root, provider, Ipam(root / "ipam"))
        for number in range(1, devices + 1):
            machine.plug_netdev(number)
        return machine

    def close(self) -> None:
        for pod in list(self.pods):
            self.kill_pod(pod)
        for number in range(1, 40):
            subprocess.run(["ip", "link", "del", f"wire{number}"], check=False, stderr=subprocess.DEVNULL)

    @property
    def host(self) -> Host:
        roots = Roots(self.root)
        return Host(roots, Ledger(roots), lambda: self.provider, stop=self.stop)

    def plug_netdev(self, number: int) -> None:
        ip(f"link add ipourma{number} type veth peer name wire{number}")
        ip(f"link set ipourma{number} mtu 1480 txqueuelen 777 alias native-{number}")
        ip(f"addr add 4245:4944::{number}/64 dev ipourma{number} nodad")
        ip(f"link set ipourma{number} up")
        ip(f"link set wire{number} up")

    def new_pod(self, name: str) -> str:
        """Make a network namespace; return its path."""
        ip(f"netns add {name}")
        ip(f"-n {name} link set lo up")
        self.pods.append(name)
        return f"/run/netns/{name}"

    def kill_pod(self, name: str) -> None:
        inode = Path(f"/run/netns/{name}").stat().st_ino
        ip(f"netns del {name}")
        self.pods.remove(name)
        self.provider.netns_gone(inode)

    def bring_home(self, pod: str, name: str) -> None:
        """Do what the kernel does with hardware when a namespace dies: the netdev returns, under the name it has."""
        with Path(f"/run/netns/{pod}").open("rb") as netns, Rtnl(netns.fileno()) as rtnl:
            link = rtnl.link(name)
            assert link
            with Path("/proc/self/ns/net").open("rb") as home:
                rtnl.move(link.index, home.fileno(), name)

    def conf(self, **keys: Any) -> dict[str, Any]:
        return {"cniVersion": "1.1.0", "name": "ubnet", "type": "ub-cni", "deviceID": "urma_1", **keys}

    def call(
        self, verb: str, conf: Mapping[str, Any] | bytes, *, pod: str = "", container: str = "c1", ifname: str = "net1",
        **environ: str,
    ) -> Answer:  # fmt: skip
        variables = self.environ(verb, pod, container, ifname) | environ
        stdin = conf if isinstance(conf, bytes) else json.dumps(conf).encode()
        answer = Answer(*engine.run(self.host, variables, os.urandom(8).hex(), stdin))
        if verb == "ADD" and answer.code == 0:  # whatever was asked for, what was written down of it is believed
            assert not any(record.is_damaged for record in self.host.ledger.of_attachment(container, ifname))
        return answer

    def environ(self, verb: str, pod: str, container: str = "c1", ifname: str = "net1") -> dict[str, str]:
        return {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": pod,
            "CNI_IFNAME": ifname,
            "CNI_PATH": str(self.ipam.folder),
            "PATH": os.environ["PATH"],
        }

    def start_shim(self, environ: Mapping[str, str], conf: Mapping[str, Any]) -> "subprocess.Popen[bytes]":
        """Start the executable as a runtime does, and give it its configuration."""
        variables = {"UB_ROOT": str(self.root), "PYTHONPATH": str(REPOSITORY), **environ}
        shim = subprocess.Popen(
            EXECUTABLE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables
        )
        assert shim.stdin
        shim.stdin.write(json.dumps(conf).encode())
        shim.stdin.close()
        shim.stdin = None
        return shim

    def run_shim(self, verb: str, conf: Mapping[str, Any], pod: str, container: str = "c1") -> Answer:
        shim = self.start_shim(self.environ(verb, pod, container), conf)
        stdout, _ = shim.communicate(timeout=180)
        return Answer(shim.returncode, stdout)

    # What is to be seen

    def state(self) -> tuple[Any, ...]:
        """Everything that an attachment may change on the host and that DEL must put back."""
        with Rtnl() as host:
            links = tuple(_timeless(link) for link in host.links() if link.name.startswith("ipourma"))
            addresses = tuple(host.addresses(link.index) for link in host.links() if link.name.startswith("ipourma"))
        return links, addresses, self.provider.devices(), tuple(self.ledger)

    @property
    def ledger(self) -> list[str]:
        folder = self.root / "var/lib/ub-node/attachments"
        return sorted(file.name for file in folder.iterdir()) if folder.exists() else []

    def watch_links(self) -> None:
        """Listen to what happens to links on the host from now on."""
        self.monitor = subprocess.Popen(["ip", "monitor", "link"], stdout=subprocess.PIPE, text=True)
        time.sleep(0.3)

    def link_notices(self) -> str:
        """Return the notices about the devices' links since ``watch_links``."""
        assert self.monitor
        self.monitor.terminate()
        output, _ = self.monitor.communicate()
        return "".join(line for line in output.splitlines() if "ipourma" in line)

    def link_mac(self, number: int) -> str:
        with Rtnl() as host:
            link = host.link(f"ipourma{number}")
        return link.mac if link else ""

    def link_in(self, pod: str, name: str) -> Link | None:
        with Path(pod).open("rb") as netns, Rtnl(netns.fileno()) as rtnl:
            return rtnl.link(name)

    def names_in(self, pod: str) -> set[str]:
        with Path(pod).open("rb") as netns, Rtnl(netns.fileno()) as rtnl:
            return {link.name for link in rtnl.links()}

    def members_in(self, pod: str) -> tuple[str, ...]:
        with Path(pod).open("rb") as netns:
            return self.provider.exposed(netns.fileno())


def _timeless(link: Link) -> Link:
    return replace(link, index=0)


def ip(command: str) -> None:
    """Run iproute2, which is not what the plugin itself uses."""
    subprocess.run(["ip", *command.split()], check=True)

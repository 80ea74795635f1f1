"""One QEMU guest: start it, run commands in it, pull the plug, stop it.

Emulated (TCG) unless ``UB_E2E_ACCEL=kvm``: nested KVM often hangs, and an emulated guest is the same everywhere.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e.channel import Channel, Finished, Running, connect
from e2e.errors import HarnessError
from e2e.image import Image

QEMU = "qemu-system-x86_64"
BOOT_S = 300.0
EMPTY_NODE = 3
CMDLINE = (
    "root=/dev/vda rw console=ttyS0 quiet mitigations=off random.trust_cpu=on cryptomgr.notests panic=-1 psi=1 "
    "systemd.show_status=0 systemd.unit=ub-e2e.target systemd.journald.forward_to_console=0 "
    "net.ifnames=0"  # eth0 stays eth0, whenever udev comes to be started
)


def _numa(cpus_per_socket: int) -> tuple[str, ...]:
    """Two sockets, and a node without CPUs as memory borrowed over UB is; distances 21 and 80."""
    first, second = f"0-{cpus_per_socket - 1}", f"{cpus_per_socket}-{2 * cpus_per_socket - 1}"
    return (
        *("-object", "memory-backend-ram,id=m0,size=768M", "-numa", f"node,nodeid=0,cpus={first},memdev=m0"),
        *("-object", "memory-backend-ram,id=m1,size=768M", "-numa", f"node,nodeid=1,cpus={second},memdev=m1"),
        *("-object", "memory-backend-ram,id=m2,size=512M", "-numa", "node,nodeid=2,memdev=m2"),
        *("-numa", "dist,src=0,dst=1,val=21", "-numa", "dist,src=0,dst=2,val=80", "-numa", "dist,src=1,dst=2,val=80"),
    )


def _empty_node() -> tuple[str, ...]:
    """A node that has nothing yet: memory can be plugged into it, as memory is borrowed over UB."""
    distances = ((0, 80), (1, 80), (2, 100))
    return (
        "-numa",
        f"node,nodeid={EMPTY_NODE}",
        *(word for node, far in distances for word in ("-numa", f"dist,src={node},dst={EMPTY_NODE},val={far}")),
    )


@dataclass(frozen=True)
class Link:
    """One end of a wire between two guests: Ethernet frames as datagrams between two UNIX sockets."""

    here: Path
    there: Path
    mac: str

    def arguments(self) -> tuple[str, ...]:
        ends = f"local.type=unix,local.path={self.here},remote.type=unix,remote.path={self.there}"
        return (
            *("-netdev", f"dgram,id=wire,{ends}"),
            *("-device", f"virtio-net-pci,netdev=wire,mac={self.mac}"),
        )


@dataclass(frozen=True)
class Uplink:
    """The guest reaches servers on this machine's loopback at ``HOST``; without a route it reaches nothing else."""

    HOST = "10.0.2.2"
    GUEST = "10.0.2.15/24"

    def arguments(self) -> tuple[str, ...]:
        return ("-netdev", "user,id=uplink", "-device", "virtio-net-pci,netdev=uplink")


@dataclass(frozen=True)
class Spec:
    """What a guest is made of."""

    image: Image
    payload: Path
    name: str = "node0"
    link: Link | Uplink | None = None
    cpus_per_socket: int = 2
    has_empty_node: bool = False  # NUMA node 3, without anything, for ``plug_memory``
    shared_memory: Path | None = None  # /dev/pmem0: the same file in two guests is memory that both load and store


class Machine:
    """A guest that runs while the ``with`` block does."""

    def __init__(self, spec: Spec, logs: Path) -> None:
        self.spec = spec
        self.boot_s = 0.0
        self._logs = logs
        self._work = Path(tempfile.mkdtemp(prefix="ub-e2e-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def console(self) -> Path:
        return self._logs / f"{self.spec.name}-console.log"

    def start(self) -> None:
        """Start QEMU; the guest is not up yet. It dies with us, however we die."""
        self._logs.mkdir(parents=True, exist_ok=True)
        command = ("setpriv", "--pdeathsig", "KILL", *self._command())
        with (self._logs / f"{self.spec.name}-qemu.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._started = time.monotonic()
        try:
            self._channel = connect(self._work / "agent")
        except HarnessError as error:
            self.stop()
            raise HarnessError(f"{error}; see {self._logs}/{self.spec.name}-qemu.log") from None

    def wait_ready(self, timeout_s: float = BOOT_S) -> str:
        """Wait until commands can be run; return the boot id."""
        try:
            boot_id = self.channel.wait_ready(timeout_s)
        except HarnessError as error:
            raise HarnessError(f"{self.spec.name}: {error}; see {self.console}") from None
        self.boot_s = time.monotonic() - self._started
        return boot_id

    @property
    def channel(self) -> Channel:
        assert self._channel, "the machine was not started"
        return self._channel

    def start_command(self, *argv: str, env: Mapping[str, str] | None = None, stdin: bytes = b"") -> Running:
        return self.channel.start(*argv, env=env, stdin=stdin)

    def run(
        self,
        *argv: str,
        timeout_s: float = 60,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        seen: Callable[[bytes], object] = lambda _: None,
    ) -> Finished:
        """Run a command in the guest to its end."""
        return self.channel.start(*argv, env=env, stdin=stdin, seen=seen).wait(timeout_s)

    def shell(self, script: str, timeout_s: float = 120, env: Mapping[str, str] | None = None) -> str:
        """Run a shell script that must succeed; return what it printed.

        Raises:
            HarnessError: it failed.
        """
        done = self.run("sh", "-ec", script, timeout_s=timeout_s, env=env)
        if done.exit:
            said = (done.stdout + done.stderr).decode(errors="replace")
            raise HarnessError(f"{self.spec.name}: {script!r} ended with {done.exit}: {said}")
        return done.text

    def fetch(self, source: str, target: Path) -> None:
        """Copy a folder of the guest to ``target`` here."""
        done = self.run("tar", "-C", source, "-czf", "-", ".")
        if done.exit > 1:  # 1: a log was written to while it was read
            raise HarnessError(f"{self.spec.name}: cannot read {source}: {done.stderr.decode(errors='replace')}")
        target.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-C", str(target), "-xzf", "-"], input=done.stdout, check=True)

    def reset(self) -> str:
        """Cut the power and start again: nothing is flushed, the disk keeps what had reached it. Return the boot id."""
        self._started = time.monotonic()
        self._monitor("system_reset")
        return self.wait_ready()

    def plug_memory(self) -> None:
        """Put memory into the empty node while the guest runs."""
        self._monitor("device_add", driver="pc-dimm", id="dimm", memdev="borrowed", node=EMPTY_NODE)

    def unplug_memory(self) -> None:
        """Ask the guest to let the plugged memory go; it is gone when the guest says so, or it stays."""
        self._monitor("device_del", id="dimm")

    def stop(self) -> None:
        """End QEMU by its pid; the guest's disk changes are forgotten."""
        if self._channel:
            self._channel.close()
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._work, ignore_errors=True)

    def _monitor(self, command: str, **arguments: object) -> None:
        """Have QEMU carry out a command. Source: QEMU docs/interop/qmp-spec."""
        greeting = {"execute": "qmp_capabilities"}
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as monitor:
            monitor.settimeout(10)
            monitor.connect(str(self._work / "monitor"))
            with monitor.makefile("rw") as lines:
                lines.readline()  # its greeting
                for request in (greeting, {"execute": command, "arguments": arguments}):
                    lines.write(json.dumps(request) + "\n")
                    lines.flush()
                    while "return" not in (answer := json.loads(lines.readline())):
                        if "error" in answer:
                            raise HarnessError(f"QEMU refuses {request}: {answer['error']['desc']}")

    def _command(self) -> tuple[str, ...]:
        spec, work = self.spec, self._work
        accel = os.environ.get("UB_E2E_ACCEL", "tcg")
        image = spec.image
        shared = spec.shared_memory
        return (
            *(QEMU, "-name", spec.name, "-machine", "q35,nvdimm=on"),
            *("-accel", "tcg,thread=multi" if accel == "tcg" else accel),
            *("-cpu", "max", "-smp", str(2 * spec.cpus_per_socket)),
            *("-m", "2048,slots=2,maxmem=4G", *_numa(spec.cpus_per_socket)),
            *(_empty_node() if spec.has_empty_node else ()),
            *("-kernel", str(image.kernel), "-initrd", str(image.initramfs)),
            *("-append", f"{CMDLINE} ub.name={spec.name}"),
            *("-drive", f"file={image.disk},if=virtio,format=raw,cache=unsafe,snapshot=on"),
            *("-drive", f"file={spec.payload},if=virtio,format=raw,readonly=on"),
            *(
                ("-object", f"memory-backend-file,id=pm,mem-path={shared},share=on,size={shared.stat().st_size}",
                 "-device", "nvdimm,memdev=pm,id=nv1")
                if shared else ()
            ),
            *(spec.link.arguments() if spec.link else ("-net", "none")),
            *("-device", "virtio-serial", "-chardev", f"socket,id=agent,path={work}/agent,server=on,wait=off"),
            *("-device", "virtserialport,chardev=agent,name=ub-e2e"),
            *("-qmp", f"unix:{work}/monitor,server=on,wait=off", "-monitor", "none"),
            *("-display", "none", "-serial", f"file:{self.console}"),
        )  # fmt: skip

"""The harness's end of the channel to the guest: run commands there, see what they print.

The wire is described in ``agent.py``.
"""

import base64
import contextlib
import json
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.errors import HarnessError


@dataclass(frozen=True)
class Finished:
    """A command that ended; ``exit`` is negative for the signal that killed it."""

    exit: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        return self.stdout.decode(errors="replace")


@dataclass
class Running:
    """A command in the guest. ``seen`` is called with each piece of its output as it comes."""

    channel: "Channel"
    ident: int
    argv: tuple[str, ...]
    seen: Callable[[bytes], object]
    output: dict[str, bytearray] = field(default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()})
    exit: "queue.Queue[int | None]" = field(default_factory=queue.Queue)

    def wait(self, timeout_s: float = 60) -> Finished:
        """Wait for its end.

        Raises:
            HarnessError: it took longer than ``timeout_s`` (and was killed), or the guest is gone.
        """
        command = " ".join(self.argv)[:80]
        try:
            code = self.exit.get(timeout=timeout_s)
        except queue.Empty:
            self.kill()
            said = bytes(self.output["stdout"] + self.output["stderr"])[-2000:].decode(errors="replace")
            raise HarnessError(f"{command!r} ran longer than {timeout_s:.0f} s in the guest; it said: {said}") from None
        if code is None:
            raise HarnessError(f"the guest went away while it ran {command!r}")
        return Finished(code, bytes(self.output["stdout"]), bytes(self.output["stderr"]))

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.channel.send(id=self.ident, signal=int(number))


class Channel:
    """A connection to the agent of one guest. It survives reboots: ``wait_ready`` tells each of them."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._running: dict[int, Running] = {}
        self._last = 0
        self._lock = threading.Lock()
        self._ready: queue.Queue[str | None] = queue.Queue()
        self._receiver = threading.Thread(target=self._receive, daemon=True)
        self._receiver.start()

    def wait_ready(self, timeout_s: float) -> str:
        """Wait for the next start of the agent; return the boot id of the guest's kernel."""
        try:
            boot_id = self._ready.get(timeout=timeout_s)
        except queue.Empty:
            raise HarnessError(f"the guest did not start within {timeout_s:.0f} s") from None
        if boot_id is None:
            raise HarnessError("QEMU ended before the guest was up")
        return boot_id

    def start(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        seen: Callable[[bytes], object] = lambda _: None,
    ) -> Running:
        """Start a command and return at once."""
        with self._lock:
            self._last += 1
            running = self._running[self._last] = Running(self, self._last, argv, seen)
        self.send(id=running.ident, argv=argv, env=dict(env or {}), stdin=base64.b64encode(stdin).decode())
        return running

    def send(self, **message: object) -> None:
        data = json.dumps(message).encode() + b"\n"
        with self._lock:
            self._socket.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # QEMU is gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._receiver.join()
        self._socket.close()

    def _receive(self) -> None:
        pending = b""
        with contextlib.suppress(ConnectionError):  # QEMU was killed
            while data := self._socket.recv(1 << 16):
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self._dispatch(line)
        self._ready.put(None)
        self._abandon()

    def _dispatch(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:  # the first line after a reboot may begin in the middle of an old one
            return
        if "ready" in message:
            self._abandon()
            self._ready.put(str(message["ready"]))
            return
        running = self._running.get(message["id"])
        if running is None:
            return
        if "exit" in message:
            del self._running[running.ident]
            running.exit.put(int(message["exit"]))
        for name in ("stdout", "stderr"):
            if name in message:
                data = base64.b64decode(message[name])
                running.output[name] += data
                running.seen(data)

    def _abandon(self) -> None:
        """Tell all who wait that what they wait for died with the guest."""
        for running in list(self._running.values()):
            running.exit.put(None)
        self._running.clear()


def connect(path: Path, timeout_s: float = 10) -> Channel:
    """Connect to QEMU's socket as soon as it listens."""
    deadline = time.monotonic() + timeout_s
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    while True:
        try:
            end.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > deadline:
                end.close()
                raise HarnessError(f"QEMU does not listen on {path}") from None
            time.sleep(0.02)
        else:
            return Channel(end)

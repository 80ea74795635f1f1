"""The guest's end of the channel: runs the commands that the harness sends, streams back what they print.

One JSON object a line each way over the virtio serial port ``ub-e2e``:

    -> {"id": 1, "argv": ["ip", "link"], "env": {}, "stdin": "<base64>"}    run it
    -> {"id": 1, "signal": 9}                                              signal its process group
    <- {"ready": "<boot id>", "uptime": 9.8}                               once, when the agent starts
    <- {"id": 1, "stdout": "<base64>"} / {"id": 1, "stderr": "<base64>"}
    <- {"id": 1, "exit": 0}                                                negative: killed by that signal

Standard library only: it starts before anything else is known to work.
"""

import base64
import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import BinaryIO


def find_port(name: str) -> Path:
    """Return the device of the virtio port; there is no udev that would make a link to it."""
    while True:
        for port in Path("/sys/class/virtio-ports").glob("*/name"):
            if port.read_text().strip() == name:
                return Path("/dev") / port.parent.name
        time.sleep(0.05)


class Agent:
    def __init__(self, port: BinaryIO) -> None:
        self._port = port
        self._writing = threading.Lock()
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def send(self, **message: object) -> None:
        data = json.dumps(message).encode() + b"\n"
        with self._writing:
            while data:
                data = data[self._port.write(data) :]

    def serve(self) -> None:
        pending = b""
        while True:
            data = os.read(self._port.fileno(), 1 << 16)
            if not data:  # the harness is not connected
                time.sleep(0.05)
                continue
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                self.handle(json.loads(line))

    def handle(self, request: dict) -> None:  # type: ignore[type-arg]
        if "signal" in request:
            process = self._running.get(request["id"])
            if process and process.poll() is None:
                os.killpg(process.pid, request["signal"])
            return
        threading.Thread(target=self.run, args=(request,), daemon=True).start()

    def run(self, request: dict) -> None:  # type: ignore[type-arg]
        ident = request["id"]
        try:
            process = subprocess.Popen(
                request["argv"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "HOME": "/root", **request.get("env", {})},
                cwd="/root",
                start_new_session=True,
            )
        except OSError as error:
            self.send(id=ident, stderr=base64.b64encode(f"{error}\n".encode()).decode())
            self.send(id=ident, exit=127)
            return
        self._running[ident] = process
        assert process.stdin
        assert process.stdout
        assert process.stderr
        readers = [
            threading.Thread(target=self.forward, args=(ident, name, pipe), daemon=True)
            for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr))
        ]
        for reader in readers:
            reader.start()
        try:
            process.stdin.write(base64.b64decode(request.get("stdin", "")))
            process.stdin.close()
        except BrokenPipeError:
            pass
        code = process.wait()
        for reader in readers:
            reader.join(2)  # a daemon that it left behind may keep the pipe open for ever
        del self._running[ident]
        self.send(id=ident, exit=code)

    def forward(self, ident: int, name: str, pipe: BinaryIO) -> None:
        while data := os.read(pipe.fileno(), 1 << 15):
            self.send(id=ident, **{name: base64.b64encode(data).decode()})


def main() -> None:
    with find_port("ub-e2e").open("r+b", buffering=0) as port:
        agent = Agent(port)
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        agent.send(ready=boot_id, uptime=float(Path("/proc/uptime").read_text().split()[0]))
        agent.serve()


if __name__ == "__main__":
    main()

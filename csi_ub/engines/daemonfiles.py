"""Files of the GlusterFS daemons of this node: volume file, pid, log. They hold passwords, so root alone reads them."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from csi_ub import logfiles, programs
from csi_ub.locks import hold
from csi_ub.reasons import Unreachable
from ubhost.errors import HostFault

START_S = 10.0


@dataclass(frozen=True, slots=True)
class Files:
    """``<folder>/<volume>.<kind>.{vol,pid,log}`` for kinds brick, client and healer."""

    folder: Path

    @contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """Work alone on the daemons of ``what``."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with hold(self.folder, what, wait_s=START_S):
            yield

    def path(self, volume_id: str, suffix: str) -> Path:
        return self.folder / f"{volume_id}.{suffix}"

    def volfile(self, volume_id: str, kind: str) -> str:
        return str(self.path(volume_id, f"{kind}.vol"))

    def read(self, volume_id: str, suffix: str) -> str:
        """Return the text of a file, "" if there is none."""
        try:
            return self.path(volume_id, suffix).read_text(encoding="utf-8")
        except OSError:
            return ""

    def write(self, volume_id: str, suffix: str, text: str) -> None:
        path = self.path(volume_id, suffix)
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
                file.write(text)
        except OSError as error:
            raise HostFault(f"cannot write {path}: {error.strerror}") from error

    def run(self, program: str, volume_id: str, kind: str, *more: str) -> None:
        """Start a daemon with its volume file; return when it is in the background."""
        files = (str(self.path(volume_id, f"{kind}.{suffix}")) for suffix in ("pid", "log"))
        pid, log = files
        command = [programs.find(program), "-f", self.volfile(volume_id, kind), "-p", pid, "-l", log, *more]
        programs.run(programs.apart(command))

    def pid(self, volume_id: str, kind: str) -> int | None:
        """Return the process of a daemon that runs."""
        return programs.is_running(self.path(volume_id, f"{kind}.pid"), self.volfile(volume_id, kind))

    def end(self, volume_id: str, kind: str, how: signal.Signals = signal.SIGTERM) -> None:
        """End a daemon and wait until it has gone; it may have ended."""
        if pid := self.pid(volume_id, kind):
            os.kill(pid, how)
            wait(lambda: not self.pid(volume_id, kind), f"the {kind} of volume {volume_id} does not end")

    def trim_logs(self) -> None:
        for log in self.folder.glob("*.log"):
            logfiles.trim(log)

    def remove(self, volume_id: str, kind: str) -> None:
        for suffix in ("pid", "vol", "log", "log.old"):
            self.path(volume_id, f"{kind}.{suffix}").unlink(missing_ok=True)


def wait(until: Callable[[], bool], failure: str) -> None:
    """Raise ``Unreachable`` if something does not come about in ``START_S``."""
    deadline = time.monotonic() + START_S
    while not until():
        if time.monotonic() > deadline:
            raise Unreachable(failure)
        time.sleep(0.02)

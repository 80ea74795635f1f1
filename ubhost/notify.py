"""What the service manager is told of a daemon: ready, well, stopping. Nothing if none asked to be told.

systemd hands a ``Type=notify`` service the address of a socket in ``NOTIFY_SOCKET``, and with ``WatchdogSec=`` how
often it wants to hear that the service is well. A daemon that lives but no longer works is then restarted.

Source: sd_notify(3), sd_watchdog_enabled(3).
"""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass

LOG = logging.getLogger(__name__)
SOCKET, PERIOD, WATCHED = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"


@dataclass(frozen=True, slots=True)
class Manager:
    """Whom to tell. ``address`` is ``None`` where nobody asked; ``period_s`` 0 without a watchdog."""

    address: str | None = None
    period_s: float = 0.0

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str] = os.environ) -> "Manager":
        """Read what the service manager set, and take it out of ``environ``: it is not for programs that we start."""
        address, period, watched = (environ.pop(name, "") for name in (SOCKET, PERIOD, WATCHED))
        if not address.startswith(("/", "@")):
            return cls()
        is_ours = period.isdecimal() and watched in ("", str(os.getpid()))
        return cls(address, int(period) / 1e6 if is_ours else 0.0)

    def tell(self, *lines: str) -> None:
        """Send assignments such as ``READY=1``. A manager that does not hear is no reason for us to fail."""
        if self.address is None:
            return
        path = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)  # a full queue must not hold the daemon up
                sender.sendto("\n".join(lines).encode(), path)
        except OSError as error:
            LOG.warning("the service manager does not hear us", extra={"socket": self.address, "error": str(error)})

    @contextmanager
    def serving(self, status: str = "", is_well: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Say READY now and STOPPING at the end; between them WATCHDOG twice a period, as long as ``is_well``.

        ``is_well`` is asked on a thread of its own and must not block: a daemon that hangs in it is not well.
        """
        end = threading.Event()

        def keep_telling() -> None:
            while not end.wait(self.period_s / 2):
                if is_well():
                    self.tell("WATCHDOG=1")

        self.tell("READY=1", f"STATUS={status}")
        if self.address is not None and self.period_s:
            threading.Thread(target=keep_telling, name="watchdog", daemon=True).start()
        try:
            yield
        finally:
            end.set()
            self.tell("STOPPING=1")

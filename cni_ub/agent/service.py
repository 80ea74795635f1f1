"""What the agent runs beside its socket: parts that start, stop, and say whether they are ready.

A part that watches something is a ``Loop``: one thread, one short turn at a time. What is watched without an event
(a file of kubelet, a configuration of another CNI) costs a stat a second, which also works when the folder itself is
replaced; a watch on the old folder would go silent then.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from ubhost.errors import UbError

RETRY_S = 5.0

log = logging.getLogger(__name__)


class Service(Protocol):
    """One part of the agent."""

    name: str

    def start(self) -> None:
        """Begin, and return at once; what is not there yet is waited for in the background."""

    def stop(self) -> None:
        """End, and leave nothing running. May be called on a part that never started."""

    def ready(self) -> str | None:
        """Say why this part cannot do its work now; ``None`` if it can."""


class Loop:
    """Call ``turn`` every ``period_s`` seconds, and soon after ``wake``, in a thread of its own.

    After a turn that failed the next one comes sooner, where the period is long.
    A reason (``UbError``) that ``turn`` raises is kept in ``trouble`` until a turn succeeds, and is logged when it
    changes. A bug is logged with its trace, and the loop goes on: one bad device must not blind the agent.
    """

    def __init__(self, name: str, turn: Callable[[], None], period_s: float = 1.0) -> None:
        self.trouble: str | None = f"{name} has not looked yet"
        self._name = name
        self._turn = turn
        self._period_s = period_s
        self._awake = threading.Event()
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._awake.set()

    def stop(self) -> None:
        self._is_stopping = True
        self._awake.set()
        if self._thread:
            self._thread.join()
            self._thread = None

    def _once(self) -> None:
        try:
            self._turn()
        except UbError as error:
            self._note(str(error))
        except Exception:
            log.exception("a part of the agent failed", extra={"part": self._name})
            self.trouble = f"{self._name} failed: see the log"
        else:
            self._note(None)

    def _run(self) -> None:
        while not self._is_stopping:
            self._awake.clear()
            self._once()
            self._awake.wait(self._pause_s())

    def _pause_s(self) -> float:
        """Return the time to the next turn. Loops of one period turn together: a CPU wakes up once for all of them."""
        period_s = min(self._period_s, RETRY_S) if self.trouble else self._period_s
        return period_s - time.monotonic() % period_s

    def _note(self, trouble: str | None) -> None:
        if trouble and trouble != self.trouble:
            log.warning("a part of the agent is not ready", extra={"part": self._name, "why": trouble})
        elif self.trouble and not trouble:
            log.info("a part of the agent is ready", extra={"part": self._name})
        self.trouble = trouble

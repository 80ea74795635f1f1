"""The socket to the runtime: connect, register, serve, and connect again.

A plugin that lost its runtime comes back by itself, but not in a hurry: every registration makes the runtime wait for
its running calls, and a long graceful stop among them freezes the node meanwhile. So a session that is slow to be
configured or synchronized is waited for without limit (its end is seen as the end of the socket), and only a session
that was synchronized and lasted resets the pause.

Source: reference/nri.md sections 1.1, 1.5 and 5 (A1, A7, A10, A11, A21, B14).
"""

import logging
import os
import random
import select
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path

from ubproto.nri.v1alpha1 import nri_pb2

from nri_qos.plugin import VERSION, Plugin, Refusal
from nri_qos.ttrpc.frame import ProtocolError
from nri_qos.ttrpc.session import Answer, Session, Status
from ubhost import signals

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
LASTED_S = 10.0  # a session that lived so long was a good one
SEND_TIMEOUT_S = 10.0  # the runtime does not read at all: give up
QUIET_S = 60.0  # between two log lines about the same trouble
_RUNTIME = "nri.pkg.api.v1alpha1.Runtime"
_log = logging.getLogger(__name__)


class Stop:
    """SIGTERM or SIGINT, which ask the main thread to end, wherever it waits."""

    def __init__(self) -> None:
        self.reader = signals.told()
        self._poll = select.poll()
        self._poll.register(self.reader, select.POLLIN)

    @property
    def is_set(self) -> bool:
        return self.wait(0)

    def wait(self, timeout_s: float) -> bool:
        """Sleep; return early, and true, if asked to stop."""
        return bool(self._poll.poll(timeout_s * 1000))


class Pauses:
    """How long to wait before the next attempt: doubling, with jitter, so that plugins do not come back in step."""

    def __init__(self, random_: Callable[[], float] = random.random) -> None:
        self._random = random_
        self._next_s = FIRST_PAUSE_S

    def reset(self) -> None:
        self._next_s = FIRST_PAUSE_S

    def next(self) -> float:
        pause_s = self._next_s
        self._next_s = min(pause_s * 2, LONGEST_PAUSE_S)
        return pause_s * (0.5 + self._random() / 2)


class Link:
    """Serves ``plugin`` to one runtime after another, or to the one that started us."""

    def __init__(self, plugin: Plugin, name: str, index: str, stop: Stop) -> None:
        self._plugin = plugin
        self._name = name
        self._index = index
        self._stop = stop
        self._complained = -QUIET_S

    def serve_inherited(self, fd: int) -> None:
        """Serve the runtime that started this process; return when it goes away."""
        with socket.socket(fileno=fd) as trunk:
            self._serve(trunk)

    def serve_for_ever(self, paths: tuple[Path, ...]) -> None:
        """Connect to the first of ``paths`` that exists, again and again; return when asked to stop."""
        pauses = Pauses()
        while not self._stop.is_set:
            trunk = self._connect(paths)
            if trunk is not None:
                began = time.monotonic()
                with trunk:
                    self._serve(trunk)
                if self._plugin.phase.is_synchronized and time.monotonic() - began > LASTED_S:
                    pauses.reset()
                self._plugin.disconnected()
            self._stop.wait(pauses.next())

    def _connect(self, paths: tuple[Path, ...]) -> socket.socket | None:
        path = next((path for path in paths if os.path.exists(path)), paths[0])  # noqa: PTH110 - whatever the error
        trunk = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        trunk.settimeout(SEND_TIMEOUT_S)  # one that accepts nobody is no runtime now: we must not wait in the kernel
        try:
            trunk.connect(str(path))
        except OSError as error:
            trunk.close()
            if time.monotonic() - self._complained >= QUIET_S:
                self._complained = time.monotonic()
                _log.warning("no runtime, trying on", extra={"socket": str(path), "error": str(error)})
            return None
        self._complained = -QUIET_S
        return trunk

    def _serve(self, trunk: socket.socket) -> None:
        """Register and answer calls until either end closes. The runtime can configure us before it confirms."""
        self._plugin.connected()
        session = Session()
        register = nri_pb2.RegisterPluginRequest(plugin_name=self._name, plugin_idx=self._index, NRI_version=VERSION)
        session.call(_RUNTIME, "RegisterPlugin", register.SerializeToString())
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(trunk, selectors.EVENT_READ)
                selector.register(self._stop.reader, selectors.EVENT_READ)
                trunk.settimeout(SEND_TIMEOUT_S)  # one that was handed over may have none
                trunk.sendall(session.take_output())
                while self._exchange(trunk, session, selector):
                    pass
        except (OSError, ProtocolError) as error:
            _log.warning("the session with the runtime broke", extra={"error": str(error)})

    def _exchange(self, trunk: socket.socket, session: Session, selector: selectors.BaseSelector) -> bool:
        selector.select()
        if self._stop.is_set:
            return False
        data = trunk.recv(1 << 18)
        if not data:
            _log.warning("the runtime closed the session", extra={"runtime": self._plugin.phase.runtime})
            return False
        for event in session.receive(data):
            if isinstance(event, Answer):
                if event.code != Status.OK:
                    _log.error("the runtime refused us", extra={"method": event.method, "error": event.message})
                    return False
                _log.info("registered with the runtime", extra={"plugin": f"{self._index}-{self._name}"})
                continue
            try:
                session.answer(event, self._plugin.handle(event))
            except Refusal as refusal:
                session.refuse(event, refusal.code, str(refusal))
            trunk.sendall(session.take_output())
        trunk.sendall(session.take_output())
        return True

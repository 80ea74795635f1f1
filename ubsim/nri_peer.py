"""A connected NRI plugin as a runtime has it: frames and calls both ways, with the limits of the real one.

Source: reference/nri.md sections 1.1 to 1.4.
"""

import socket
import struct
import time
from typing import TypeVar

from google.protobuf.message import Message

from nri_qos.ttrpc import mux
from nri_qos.ttrpc.session import Answer, Call, Session, Status

M = TypeVar("M", bound=Message)
_PLUGIN = "nri.pkg.api.v1alpha1.Plugin"


class PluginClosed(Exception):
    """The connection to the plugin is gone; the message says why. Containers are created without it from now on."""


class CallRefused(Exception):
    """The plugin answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Peer:
    """One connected plugin."""

    def __init__(self, trunk: socket.socket, timeout_s: float) -> None:
        self.name = ""
        self.index = ""
        self.events = 0
        self.largest_frame = 0  # bytes of payload, of those the plugin sent
        self.calls: list[str] = []  # what we asked it
        self._trunk = trunk
        self._timeout_s = timeout_s
        self._session = Session(serves=mux.RUNTIME, calls=mux.PLUGIN)
        self._unread = bytearray()
        self._answers: dict[int, Answer] = {}
        self._asked: list[Call] = []

    def close(self) -> None:
        self._trunk.close()

    def call(self, method: str, request: Message, answer: type[M], *, timeout_s: float | None = None) -> M:
        """Ask the plugin.

        Raises:
            CallRefused: it answered with an error.
            PluginClosed: it broke the protocol, went away, or did not answer in time.
        """
        self.calls.append(method)
        limit_s = timeout_s or self._timeout_s
        stream = self._session.call(_PLUGIN, method, request.SerializeToString(), limit_s)
        self.flush()
        until = time.monotonic() + limit_s
        while stream not in self._answers:
            self._read(until, f"no answer to {method} within {limit_s} s")
        reply = self._answers.pop(stream)
        if reply.code != Status.OK:
            raise CallRefused(reply.code, reply.message)
        return answer.FromString(reply.payload)

    def asked(self, timeout_s: float) -> Call:
        """Return the next call of the plugin."""
        until = time.monotonic() + timeout_s
        while not self._asked:
            self._read(until, f"no call within {timeout_s} s")
        return self._asked.pop(0)

    def answer(self, call: Call, message: Message) -> None:
        self._session.answer(call, message.SerializeToString())
        self.flush()

    def refuse(self, call: Call, code: Status, message: str) -> None:
        self._session.refuse(call, code, message)
        self.flush()

    def flush(self) -> None:
        try:
            self._trunk.sendall(self._session.take_output())
        except OSError as error:
            raise PluginClosed(str(error)) from error

    def send_raw(self, data: bytes) -> None:
        self._trunk.sendall(data)

    def is_closed_within(self, timeout_s: float) -> bool:
        """Whether the plugin hangs up. What it sends until then is lost."""
        until = time.monotonic() + timeout_s
        while (left_s := until - time.monotonic()) > 0:
            self._trunk.settimeout(left_s)
            try:
                if not self._trunk.recv(1 << 16):
                    return True
            except TimeoutError:
                return False
            except OSError:
                return True
        return False

    def _read(self, until: float, complaint: str) -> None:
        left_s = until - time.monotonic()
        try:
            if left_s <= 0:
                raise TimeoutError
            self._trunk.settimeout(left_s)
            data = self._trunk.recv(1 << 16)
        except TimeoutError:
            self.close()
            raise PluginClosed(complaint) from None
        except OSError as error:
            raise PluginClosed(str(error)) from error
        if not data:
            raise PluginClosed("the plugin hung up")
        self._check_frames(data)
        for event in self._session.receive(data):
            if isinstance(event, Answer):
                self._answers[event.stream] = event
            else:
                self._asked.append(event)

    def _check_frames(self, data: bytes) -> None:
        self._unread += data
        while len(self._unread) >= 8:
            _, length = struct.unpack_from(">II", self._unread)
            self.largest_frame = max(self.largest_frame, length)
            if length > 4096:
                self.close()
                raise PluginClosed(f"mux frame of {length} bytes: the reader of ttrpc headers takes 4096")
            if len(self._unread) < 8 + length:
                return
            del self._unread[: 8 + length]

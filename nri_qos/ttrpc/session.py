"""One NRI connection as calls and answers: bytes in, events out, bytes to send collected. No sockets here.

Both ends use the same class: the plugin serves ``mux.PLUGIN`` and calls on ``mux.RUNTIME``, a runtime the other way
round. Calls and answers are independent: a call of the runtime can come while we wait for the answer to ours, and
in fact does during registration.

Source: containerd/ttrpc server.go and client.go; reference/nri.md sections 1.2, 1.3 and 1.5.
"""

from dataclasses import dataclass
from enum import IntEnum

from google.protobuf.message import DecodeError
from ubproto.ttrpc import ttrpc_pb2

from nri_qos.ttrpc import frame, mux


class Status(IntEnum):
    """The gRPC codes that cross this connection."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13


@dataclass(frozen=True, slots=True)
class Call:
    """The peer asks us something; exactly one ``answer`` or ``refuse`` must follow."""

    stream: int
    service: str
    method: str
    payload: bytes
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The peer answered our call ``stream``."""

    stream: int
    method: str
    code: int
    message: str
    payload: bytes


class Session:
    """Protocol state of one connection. Whatever must be sent is fetched by ``take_output()``."""

    def __init__(self, *, serves: int = mux.PLUGIN, calls: int = mux.RUNTIME) -> None:
        self._serves = serves
        self._calls = calls
        self._trunk = mux.Decoder()
        self._decoders = {serves: frame.Decoder(), calls: frame.Decoder()}
        self._last_stream = 0  # of the peer's calls
        self._next_stream = 1  # of ours
        self._waiting: dict[int, str] = {}
        self._output = bytearray()

    def receive(self, data: bytes) -> list[Call | Answer]:
        """Take in ``data`` and return what it completes. Unknown connections are skipped.

        Raises:
            ProtocolError: the connection cannot go on.
        """
        events: list[Call | Answer] = []
        for connection, piece in self._trunk.feed(data):
            if connection not in self._decoders:
                continue
            for item in self._decoders[connection].feed(piece):
                event = self._served(item) if connection == self._serves else self._answered(item)
                if event is not None:
                    events.append(event)
        return events

    def take_output(self) -> bytes:
        """Return the bytes to send now; they are forgotten here."""
        output = bytes(self._output)
        self._output.clear()
        return output

    def call(self, service: str, method: str, payload: bytes, timeout_s: float = 0) -> int:
        """Ask the peer; the ``Answer`` will carry the returned stream id. ``timeout_s`` 0: no deadline."""
        request = ttrpc_pb2.Request(
            service=service, method=method, payload=payload, timeout_nano=int(timeout_s * 1_000_000_000)
        )
        stream = self._next_stream
        self._next_stream += 2
        self._waiting[stream] = method
        self._send(self._calls, frame.Frame(stream, frame.Kind.REQUEST, request.SerializeToString()))
        return stream

    def answer(self, call: Call, payload: bytes) -> None:
        """Answer ``call`` with success; an answer over the limit of ttrpc becomes a refusal."""
        data = ttrpc_pb2.Response(payload=payload).SerializeToString()
        if len(data) > frame.MAX_DATA:
            self.refuse(
                call, Status.RESOURCE_EXHAUSTED, f"answer of {len(data)} bytes, at most {frame.MAX_DATA} allowed"
            )
        else:
            self._send(self._serves, frame.Frame(call.stream, frame.Kind.RESPONSE, data))

    def refuse(self, call: Call, code: Status, message: str) -> None:
        """Answer ``call`` with an error."""
        self._refuse(call.stream, code, message)

    def _refuse(self, stream: int, code: Status, message: str) -> None:
        response = ttrpc_pb2.Response(status=ttrpc_pb2.Status(code=code, message=message[:4096]))
        self._send(self._serves, frame.Frame(stream, frame.Kind.RESPONSE, response.SerializeToString()))

    def _send(self, connection: int, message: frame.Frame) -> None:
        self._output += mux.encode(connection, message.encode())

    def _served(self, item: frame.Frame | frame.Oversized) -> Call | None:
        if item.kind is not frame.Kind.REQUEST:
            return None  # data of streaming calls, which NRI does not have
        if item.stream % 2 == 0 or item.stream <= self._last_stream:
            self._refuse(item.stream, Status.INVALID_ARGUMENT, f"stream id {item.stream} after {self._last_stream}")
            return None
        self._last_stream = item.stream
        if isinstance(item, frame.Oversized):
            self._refuse(
                item.stream, Status.RESOURCE_EXHAUSTED, f"message of {item.length} bytes, at most {frame.MAX_DATA}"
            )
            return None
        try:
            request = ttrpc_pb2.Request.FromString(item.data)
        except DecodeError as error:
            self._refuse(
                item.stream, Status.INVALID_ARGUMENT, f"request on stream {item.stream} is not protobuf: {error}"
            )
            return None
        timeout_s = request.timeout_nano / 1e9 if request.timeout_nano > 0 else None
        return Call(item.stream, request.service, request.method, request.payload, timeout_s)

    def _answered(self, item: frame.Frame | frame.Oversized) -> Answer | None:
        if item.kind is not frame.Kind.RESPONSE or item.stream not in self._waiting:
            return None
        method = self._waiting.pop(item.stream)
        if isinstance(item, frame.Oversized):
            return Answer(item.stream, method, Status.RESOURCE_EXHAUSTED, f"answer of {item.length} bytes", b"")
        try:
            response = ttrpc_pb2.Response.FromString(item.data)
        except DecodeError as error:
            return Answer(item.stream, method, Status.INTERNAL, f"answer is not protobuf: {error}", b"")
        return Answer(item.stream, method, response.status.code, response.status.message, response.payload)

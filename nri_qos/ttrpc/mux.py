"""The multiplexer below ttrpc: several connections in one byte stream. No sockets here.

A frame is an 8-byte header (connection id u32, payload length u32, big endian) and its payload. Frames do not follow
the messages inside: a message may be cut anywhere, and each connection is a byte stream of its own.

Source: containerd/nri pkg/net/multiplex; reference/nri.md section 1.2.
"""

import struct

from nri_qos.ttrpc.frame import ProtocolError

HEADER = struct.Struct(">II")
MAX_PAYLOAD = (4 << 20) + 10  # bytes; the runtime closes the connection on more
CHUNK = 4096
"""Bytes of payload that we send in one frame.

The runtime reads a ttrpc header through a buffer of 4096 bytes and fails with ENOMEM, dropping the plugin, if the
frame that holds the header is larger than that.
"""

PLUGIN = 1  # the connection on which the plugin serves
RUNTIME = 2  # the connection on which the runtime serves


def encode(connection: int, data: bytes) -> bytes:
    """Return ``data`` for ``connection`` in frames that every runtime accepts."""
    view = memoryview(data)
    return b"".join(
        part
        for start in range(0, len(view), CHUNK)
        for part in (HEADER.pack(connection, len(view[start : start + CHUNK])), view[start : start + CHUNK])
    )


class Decoder:
    """Takes a stream apart, however it was split on arrival. Payload is handed on as it comes, not frame by frame."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._connection = 0
        self._missing = 0  # bytes of the current payload that have not come yet

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return (connection, bytes) for every piece of payload in ``data``, in order.

        Raises:
            ProtocolError: a header announces more than ``MAX_PAYLOAD`` bytes.
        """
        pieces = []
        at = 0
        while at < len(data):
            if self._missing:
                piece = data[at : at + self._missing]
                pieces.append((self._connection, piece))
                self._missing -= len(piece)
                at += len(piece)
            else:
                at += self._read_header(data, at)
        return pieces

    def _read_header(self, data: bytes, at: int) -> int:
        taken = data[at : at + HEADER.size - len(self._header)]
        self._header += taken
        if len(self._header) == HEADER.size:
            self._connection, self._missing = HEADER.unpack(self._header)
            self._header.clear()
            if self._missing > MAX_PAYLOAD:
                raise ProtocolError(f"mux frame of {self._missing} bytes, at most {MAX_PAYLOAD} allowed")
        return len(taken)

"""ttrpc frames: bytes in, frames out, and back. No sockets here.

Source: containerd/ttrpc PROTOCOL.md, "Message Frame". A frame is a 10-byte header
(data length u32, stream id u32, type u8, flags u8, big endian) and at most 4 MiB of data.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

HEADER = struct.Struct(">IIBB")
MAX_DATA = 4 << 20  # bytes


class Kind(IntEnum):
    REQUEST = 1
    RESPONSE = 2
    DATA = 3


class ProtocolError(Exception):
    """The peer broke the framing rules; the connection cannot go on."""


@dataclass(frozen=True, slots=True)
class Frame:
    stream: int
    kind: Kind
    data: bytes
    flags: int = 0

    def encode(self) -> bytes:
        """Return the wire form."""
        return HEADER.pack(len(self.data), self.stream, self.kind, self.flags) + self.data


@dataclass(frozen=True, slots=True)
class Oversized:
    """A frame of more than ``MAX_DATA`` bytes. Its data is dropped, and the connection goes on, as ttrpc wants it."""

    stream: int
    kind: Kind
    length: int  # bytes, as announced


class Decoder:
    """Cuts a byte stream into frames, however the bytes were split on arrival."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._to_drop = 0  # bytes of an oversized frame that have not come yet

    def feed(self, data: bytes) -> list[Frame | Oversized]:
        """Take in ``data`` and return the frames it completes.

        Raises:
            ProtocolError: a header has an unknown kind, so what follows cannot be told apart.
        """
        dropped = min(self._to_drop, len(data))
        self._to_drop -= dropped
        self._buffer += data[dropped:] if dropped else data
        frames: list[Frame | Oversized] = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _next(self) -> Frame | Oversized | None:
        if len(self._buffer) < HEADER.size:
            return None
        length, stream, number, flags = HEADER.unpack_from(self._buffer)
        try:
            kind = Kind(number)
        except ValueError:
            raise ProtocolError(f"unknown frame kind {number}") from None
        end = HEADER.size + length
        if length > MAX_DATA:
            here = min(end, len(self._buffer))
            self._to_drop = end - here
            del self._buffer[:here]
            return Oversized(stream, kind, length)
        if len(self._buffer) < end:
            return None
        frame = Frame(stream, kind, bytes(self._buffer[HEADER.size : end]), flags)
        del self._buffer[:end]
        return frame

"""UBSE's internal serialisation, in which ``ubsectl`` speaks with it: values to bytes and back. Pure.

A message is three words (0xff, alignment minus one, length of the whole) and then items: a word with the type in its
top byte and the length in the others, and the value, filled up to 4 bytes. All numbers are in the host's order. A list
is an item of type 65 with the count, and its elements; a message inside a message is one of type 66.

Source: ubse src/framework/serde/ubse_serial_util.{h,cpp}, ubse_type_util.cpp.
"""

import struct

from ubhost.ubse.wire import Malformed

HEAD = struct.Struct("=III")
WORD = struct.Struct("=I")
HEAD_CODE, ARRAY, NESTED = 0xFF, 65, 66
U32, SIZE, TEXT = 11, 12, 34  # unsigned int, unsigned long, std::string
LENGTH_MASK = (1 << 24) - 1
ALIGN = 4


class Writer:
    """Builds one message."""

    def __init__(self) -> None:
        self._items = b""

    def u32(self, value: int) -> "Writer":
        return self._add(U32, WORD.pack(value))

    def size(self, value: int) -> "Writer":
        return self._add(SIZE, struct.pack("=Q", value))

    def text(self, value: str) -> "Writer":
        return self._add(TEXT, value.encode() + b"\0")

    def texts(self, values: tuple[str, ...]) -> "Writer":
        self._items += WORD.pack(ARRAY << 24 | len(values))
        for value in values:
            self.text(value)
        return self

    def nested(self, kid: "Writer") -> "Writer":
        return self._add(NESTED, kid.encode())

    def encode(self) -> bytes:
        return HEAD.pack(HEAD_CODE, ALIGN - 1, HEAD.size + len(self._items)) + self._items

    def _add(self, kind: int, value: bytes) -> "Writer":
        self._items += WORD.pack(kind << 24 | len(value)) + value + bytes(-len(value) % ALIGN)
        return self


class Reader:
    """Reads one message from front to back; raises ``Malformed`` when an item is not what it should be."""

    def __init__(self, data: bytes) -> None:
        if len(data) < HEAD.size or HEAD.unpack_from(data) != (HEAD_CODE, ALIGN - 1, len(data)):
            raise Malformed(f"{data[:12].hex()} does not open a message of ubsectl")
        self._data = data
        self._at = HEAD.size

    def u32(self) -> int:
        return int(WORD.unpack(self._take(U32))[0])

    def size(self) -> int:
        return int(struct.unpack("=Q", self._take(SIZE))[0])

    def text(self) -> str:
        try:
            return self._take(TEXT).rstrip(b"\0").decode()
        except UnicodeDecodeError as error:
            raise Malformed(f"a text of ubsectl is not UTF-8: {error}") from None

    def texts(self) -> tuple[str, ...]:
        count = self._head(ARRAY)
        self._at += WORD.size
        return tuple(self.text() for _ in range(min(count, len(self._data))))

    def nested(self) -> "Reader":
        return Reader(self._take(NESTED))

    def is_next(self, kind: int) -> bool:
        return len(self._data) - self._at >= WORD.size and WORD.unpack_from(self._data, self._at)[0] >> 24 == kind

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._data)

    def _take(self, kind: int) -> bytes:
        length = self._head(kind)
        start = self._at + WORD.size
        if start + length > len(self._data) or (kind == U32 and length != 4) or (kind == SIZE and length != 8):
            raise Malformed(f"an item of {length} bytes does not fit")
        self._at = start + length + -length % ALIGN
        return self._data[start : start + length]

    def _head(self, kind: int) -> int:
        if not self.is_next(kind):
            raise Malformed(f"no item of type {kind} where one should be")
        return int(WORD.unpack_from(self._data, self._at)[0]) & LENGTH_MASK

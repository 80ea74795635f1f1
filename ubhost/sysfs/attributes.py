"""Attributes of a sysfs folder: bounded, checked text, and the values in it.

What is missing is ``None``; so is what the driver will not tell now (it answers a read with an error). What is there
and makes no sense is ``Unreadable``, which names the path. Nothing read here is trusted: no attribute is longer
than a page, none has control characters, and a link or a FIFO in the place of an attribute is refused.
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import TypeVar

from ubhost.errors import HostFault, InvalidRequest
from ubhost.model import Eid

PAGE = 4096  # bytes; sysfs gives no attribute more
MAX_ENTRIES = 4096  # in one folder

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})
_UNTOLD = frozenset({errno.EIO, errno.EPERM, errno.EINVAL, errno.ENODEV, errno.ENXIO, errno.EOPNOTSUPP, errno.EAGAIN})
_ENTITY = re.compile(r"(?:0x)?([0-9a-f]{1,5})")

E = TypeVar("E", bound=IntEnum)
F = TypeVar("F", bound=IntFlag)
V = TypeVar("V")


class Unreadable(HostFault):
    """Something in the tree is not what the kernel writes there; the message names the path."""


def read_text(path: str) -> str | None:
    """Return the text of an attribute without the newline at its end; ``None`` if it is missing or not told.

    Raises:
        Unreadable: it is no plain file, too long, not text, or may not be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise Unreadable(f"{path}: {error.strerror or error}") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Unreadable(f"{path}: not an attribute")
        raw = _read(fd, path)
    finally:
        os.close(fd)
    return None if raw is None else _checked(raw, path)


def _read(fd: int, path: str) -> bytes | None:
    raw = b""
    try:
        while len(raw) <= PAGE:
            part = os.read(fd, PAGE + 1 - len(raw))
            if not part:
                return raw
            raw += part
    except OSError as error:
        if error.errno in _UNTOLD:
            return None
        raise Unreadable(f"{path}: {error.strerror or error}") from error
    raise Unreadable(f"{path}: longer than {PAGE} bytes")


def _checked(raw: bytes, path: str) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise Unreadable(f"{path}: not UTF-8") from None
    text = text.rstrip("\n")
    if not (text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable()):
        raise Unreadable(f"{path}: control characters in {text[:80]!r}")
    return text


class Folder:
    """One folder of attributes; it need not exist."""

    def __init__(self, path: Path | str) -> None:
        self.path = str(path)  # joining Paths would cost as much as reading the attributes

    def __truediv__(self, name: str) -> "Folder":
        return Folder(f"{self.path}/{name}")

    @property
    def exists(self) -> bool:
        """Whether there is anything of this name, followed through links."""
        return os.path.exists(self.path)  # noqa: PTH110 - Path.exists() raises where a folder may not be searched

    def numbered(self, prefix: str, limit: int) -> list[tuple[int, "Folder"]]:
        """Return the entries ``<prefix><number>`` with a number below ``limit``, by number.

        Raises:
            Unreadable: a number is out of range; other names are somebody else's and skipped.
        """
        found = []
        for name in self.names():
            digits = name.removeprefix(prefix)
            if (digits == name and prefix) or not (digits.isascii() and digits.isdigit()):
                continue
            if len(digits) > 9 or int(digits) >= limit:
                raise Unreadable(f"{self.path}/{name}: number out of range, at most {limit - 1}")
            found.append((int(digits), self / name))
        return sorted(found, key=lambda item: item[0])

    def names(self) -> list[str]:
        """Return the names in the folder, sorted; none if there is no such folder."""
        try:
            with os.scandir(self.path) as entries:
                return sorted(entry.name for entry in self._bounded(entries))
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            raise Unreadable(f"{self.path}: {error.strerror or error}") from error

    def _bounded(self, entries: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        for count, entry in enumerate(entries):
            if count == MAX_ENTRIES:
                raise Unreadable(f"{self.path}: more than {MAX_ENTRIES} entries")
            yield entry

    def link(self, name: str) -> str | None:
        """Return where the link ``name`` points to; ``None`` if it is no link."""
        try:
            return os.readlink(f"{self.path}/{name}")  # noqa: PTH115
        except OSError:
            return None

    def text(self, name: str) -> str | None:
        """Return one line; an empty one counts as missing."""
        text = read_text(f"{self.path}/{name}")
        if text is not None and "\n" in text:
            raise Unreadable(f"{self.path}/{name}: more than one line")
        return text.strip() or None if text is not None else None

    def lines(self, name: str) -> tuple[str, ...]:
        text = read_text(f"{self.path}/{name}")
        return tuple(line.strip() for line in text.split("\n") if line.strip()) if text else ()

    def number(self, name: str) -> int | None:
        """Decimal, or hexadecimal after ``0x``; negative where the kernel prints one."""
        return self._parsed(name, _number)

    def hexadecimal(self, name: str) -> int | None:
        """Hexadecimal with or without ``0x``."""
        return self._parsed(name, lambda text: int(text, 16))

    def flag(self, name: str) -> bool | None:
        """``0``/``1`` in any base, or ``false``/``true``."""
        return self._parsed(name, _flag)

    def eid(self, name: str) -> Eid | None:
        return self._parsed(name, Eid.parse)

    def entity(self, name: str) -> str | None:
        """The number of a UB entity, as its folder is called: 5 hex digits."""
        return self._parsed(name, entity_number)

    def enum(self, name: str, kind: type[E]) -> E | None:
        return self._parsed(name, lambda text: kind(_number(text)))

    def flags(self, name: str, kind: type[F]) -> F | None:
        """A bit mask; a bit that we do not know is an error, for a new driver means something by it."""
        return self._parsed(name, lambda text: _known_flags(_number(text), kind))

    def _parsed(self, name: str, parse: Callable[[str], V]) -> V | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            return parse(text)
        except (ValueError, InvalidRequest) as error:
            raise Unreadable(f"{self.path}/{name}: {text[:80]!r} makes no sense: {error}") from error


def entity_number(text: str) -> str:
    """Return ``0x002`` or ``00002`` as 5 digits.

    Raises:
        ValueError: it is neither.
    """
    match = _ENTITY.fullmatch(text.lower())
    if match is None:
        raise ValueError("expected a UB entity number of at most 5 hex digits")
    return match[1].rjust(5, "0")


def _number(text: str) -> int:
    if len(text) > 32 or "_" in text:
        raise ValueError("expected a number")
    return int(text, 16 if text.lower().startswith("0x") else 10)


def _flag(text: str) -> bool:
    if text in ("true", "false"):
        return text == "true"
    number = _number(text)
    if number not in (0, 1):
        raise ValueError("expected 0 or 1")
    return number == 1


def _known_flags(number: int, kind: type[F]) -> F:
    known = 0
    for flag in kind:
        known |= flag.value
    if number & ~known or number < 0:
        raise ValueError(f"expected bits of {known:#x}")
    return kind(number)

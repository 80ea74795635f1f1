"""CPU and NUMA node lists as the kernel writes them: ``0-3,8``. No input or output.

Source: Linux Documentation/admin-guide/cputopology.rst, "bitmaps as lists"; ``cpuset.cpus`` accepts the same.
"""

from collections.abc import Iterable
from functools import lru_cache

from ubhost.errors import InvalidRequest

MAX_ID = 1 << 16
"""Ids from here on are refused: far above any kernel's limit, and a typo must not fill the memory."""


@lru_cache(maxsize=4096)
def parse(text: str) -> frozenset[int]:
    """Return the ids in ``text``; blanks around numbers are fine, an empty text is an empty set.

    Raises:
        InvalidRequest: not a list of numbers and rising ranges below ``MAX_ID``.
    """
    ids: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        if not first and not dash and text.strip() == "":
            continue
        if not (_is_number(first) and (not dash or _is_number(last))):
            raise InvalidRequest(f"{text!r} is not a list of ids such as 0-3,8")
        low, high = int(first), int(last or first)
        if high < low or high >= MAX_ID:
            raise InvalidRequest(f"{text!r} is not a list of ids such as 0-3,8: {part.strip()!r} is out of range")
        ids.update(range(low, high + 1))
    return frozenset(ids)


def render(ids: Iterable[int]) -> str:
    """Return the shortest list that means ``ids``, as the kernel prints it."""
    return _render(frozenset(ids))


@lru_cache(maxsize=4096)
def _render(ids: frozenset[int]) -> str:
    parts: list[str] = []
    ordered = sorted(ids)
    start = 0
    for at, number in enumerate(ordered):
        if at + 1 == len(ordered) or ordered[at + 1] != number + 1:
            parts.append(str(number) if start == at else f"{ordered[start]}-{number}")
            start = at + 1
    return ",".join(parts)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10

"""Amounts as Kubernetes writes them (``500m``, ``2``, ``1.5Gi``, ``1e3``), read in one place for all plugins. Pure.

Whatever else is written, in digits of other scripts, without end or without sense, is one error that shows it.

Source: Kubernetes API reference, "Quantity".
"""

import re

from ubhost.errors import InvalidRequest

MOST = (1 << 63) - 1  # Kubernetes has no larger ones
LONGEST = 80  # characters of a wrong amount that are shown
_AMOUNT = re.compile(
    r"\+?(?P<whole>[0-9]{0,19})(?:\.(?P<part>[0-9]{0,19}))?"
    r"(?:(?P<binary>[KMGTPE])i|(?P<decimal>[numkMGTPE])|[eE](?P<power>[+-]?[0-9]{1,2}))?"
)
_BINARY = {letter: 1 << 10 * power for power, letter in enumerate("KMGTPE", 1)}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_PARTS = "num"
_NUMBER = re.compile(r"[0-9]{1,19}")


def thousandths(amount: object) -> int:
    """Return the thousandths of one that ``amount`` is, rounded up: CPUs as kubelet counts them.

    Raises:
        InvalidRequest: it is no amount, a negative one, or more than ``MOST``.
    """
    return _amount(amount, 1000)


def whole(amount: object) -> int:
    """Return ``amount`` rounded up, as Kubernetes does with bytes.

    Raises:
        InvalidRequest: see ``thousandths``.
    """
    return _amount(amount, 1)


def size(amount: object) -> int:
    """Return the bytes of a size that is written for us alone: as in Kubernetes, or as people do, ``4GiB`` and ``5GB``.

    Raises:
        InvalidRequest: it is none; or in thousandths of a byte, where somebody meant millions.
    """
    error = f"{_shown(amount)} is no size such as 4096, 100Mi or 4GiB"
    text = str(amount).removesuffix("B")
    if text.endswith(tuple(_PARTS)):
        raise InvalidRequest(error)
    return _scaled(text, 1, error)


def number(text: str) -> int | None:
    """Return the number that ``text`` is, in at most 19 digits from 0 to 9; ``None`` if it is none."""
    return int(text) if _NUMBER.fullmatch(text) else None


def _amount(amount: object, scale: int) -> int:
    return _scaled(str(amount), scale, f"{_shown(amount)} is no quantity such as 500m, 2 or 1Gi")


def _scaled(text: str, scale: int, error: str) -> int:
    found = _AMOUNT.fullmatch(text)
    digits = found["whole"] + (found["part"] or "") if found else ""
    if found is None or not digits:
        raise InvalidRequest(error)
    power = int(found["power"] or 0) + _DECIMAL.get(found["decimal"], 0) - len(found["part"] or "")
    value = int(digits) * scale * _BINARY.get(found["binary"], 1)
    value = value * int(10**power) if power >= 0 else -(-value // int(10**-power))
    if value > MOST * scale:
        raise InvalidRequest(error)
    return value


def _shown(amount: object) -> str:
    text = repr(amount)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"

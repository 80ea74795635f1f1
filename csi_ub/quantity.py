"""Sizes as people write them. Pure."""

import re

_SIZE = re.compile(r"([0-9]{1,15})(k|M|G|T|Ki|Mi|Gi|Ti)?B?")
_UNITS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


def size_of(text: str) -> int:
    """Return the bytes that ``text`` names: ``4096``, ``100Mi`` or ``100MiB``, ``5G`` or ``5GB``.

    Raises:
        ValueError: it is none of these.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no size such as 100Mi or 4GiB")
    return int(found[1]) * _UNITS.get(found[2], 1)

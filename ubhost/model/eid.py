"""Entity ids. Source: reference/ub.md section 2 (umdk urma_types.h)."""

import ipaddress
import re
from dataclasses import dataclass

from ubhost.errors import InvalidRequest

_FULL_EID = re.compile(r"(?:[0-9a-f]{4}:){7}[0-9a-f]{4}")  # as sysfs prints it, and so the common case


@dataclass(frozen=True, slots=True, order=True)
class Eid:
    """An entity id of 128 bits. All zero means: no EID in this slot, or another namespace's."""

    value: int

    @classmethod
    def parse(cls, text: str) -> "Eid":
        """Read 8 groups of 4 hex digits, any IPv6 form, or IPv4 (mapped to ``::ffff:a.b.c.d``).

        Raises:
            InvalidRequest: ``text`` is none of these.
        """
        if _FULL_EID.fullmatch(text):
            return cls(int(text.replace(":", ""), 16))
        try:
            address = ipaddress.ip_address(text.strip())
        except ValueError:
            raise InvalidRequest(f"{text!r} is not an EID: expected 8 groups of 4 hex digits") from None
        if isinstance(address, ipaddress.IPv4Address):
            return cls(0xFFFF << 32 | int(address))
        return cls(int(address))

    @classmethod
    def from_words(cls, *words: int) -> "Eid":
        """Compose an EID of four 32-bit words, as UBSE does for bonding devices."""
        value = 0
        for word in words:
            value = value << 32 | word & 0xFFFFFFFF
        return cls(value)

    @property
    def is_zero(self) -> bool:
        return self.value == 0

    @property
    def packed(self) -> bytes:
        return self.value.to_bytes(16, "big")

    @property
    def words(self) -> tuple[int, int, int, int]:
        """The four 32-bit words, the most significant first; see ``from_words``."""
        first, second, third, fourth = (self.value >> shift & 0xFFFFFFFF for shift in (96, 64, 32, 0))
        return first, second, third, fourth

    @property
    def ipv6(self) -> str:
        """The address ipourma gives the netdev: IP == EID, in the usual compressed form."""
        return str(ipaddress.IPv6Address(self.value))

    def __str__(self) -> str:
        """Full text as sysfs prints it: never compressed."""
        digits = f"{self.value:032x}"
        return ":".join(digits[at : at + 4] for at in range(0, 32, 4))

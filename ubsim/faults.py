"""Failures on order: the n-th call of an operation fails with an errno, or takes long.

The in-memory provider and the daemons ask ``Faults.meet`` before each operation, and again after it, so that a
test can have an operation fail that did nothing, and one that did its work and still reports a failure.
"""

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from ubhost.errors import InvalidRequest
from ubsim.ubcore import Refused


class When(Enum):
    """Whether the failure hides nothing done (before) or work that was done (after)."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(slots=True)
class Fault:
    """What goes wrong with one operation.

    ``devices`` restricts it to some (none is any); ``skip`` calls pass first; then ``count`` calls are hit.
    A fault with an ``errno`` fails, one with ``delay_s`` waits; it may have both.
    """

    operation: str
    errno: int = 0
    devices: frozenset[str] = frozenset()
    skip: int = 0
    count: int = 1
    delay_s: float = 0.0
    when: When = When.BEFORE

    def is_met_by(self, operation: str, device: str, when: When) -> bool:
        is_concerned = not self.devices or device in self.devices
        return self.count > 0 and (self.operation, self.when) == (operation, when) and is_concerned


@dataclass(slots=True)
class Faults:
    """The faults on order, and the clock that delays use."""

    sleep: Callable[[float], None] = time.sleep
    _orders: list[Fault] = field(default_factory=list)

    def order(self, fault: Fault) -> None:
        self._orders.append(fault)

    def clear(self) -> None:
        self._orders.clear()

    def pending(self) -> tuple[Fault, ...]:
        return tuple(fault for fault in self._orders if fault.count > 0)

    def meet(self, operation: str, device: str = "", when: When = When.BEFORE) -> None:
        """Let the first fault on order for this call happen.

        Raises:
            Refused: it is one that fails.
        """
        for fault in self._orders:
            if not fault.is_met_by(operation, device, when):
                continue
            if fault.skip:
                fault.skip -= 1
                continue
            fault.count -= 1
            if fault.delay_s:
                self.sleep(fault.delay_s)
            if fault.errno:
                name = errno.errorcode.get(fault.errno, str(fault.errno))
                raise Refused(fault.errno, f"{operation} of {device or 'the host'} fails on order with {name}")
            return


def errno_named(text: str) -> int:
    """Return the errno called ``text``, a name such as ``EPERM`` or its number.

    Raises:
        InvalidRequest: there is none.
    """
    number = int(text) if text.isdigit() else getattr(errno, text, 0)
    if number not in errno.errorcode:
        raise InvalidRequest(f"{text!r} is not an errno, such as EPERM or 1")
    return int(number)

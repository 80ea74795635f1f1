"""Why an operation failed, in the words of the domain.

    UbError
    ├── InvalidRequest   the caller asked for something that makes no sense
    ├── NotFound         the named thing does not exist on this host
    ├── Conflict         it exists, but not as requested
    ├── Busy             it will probably work later
    ├── Exhausted        the host has none left
    ├── Unsupported      this host, kernel or provider cannot do it at all
    └── HostFault        the kernel, a driver or a daemon of the host refused

Raise the reason, never a protocol code. Each plugin turns reasons into codes in
its own ``errors.py``, and nowhere else. A plugin may refine a reason by a subclass
of its own; the tables are looked up along the class hierarchy.
"""

from collections.abc import Mapping
from typing import TypeVar

Code = TypeVar("Code")


class UbError(Exception):
    """Base of every failure we foresee. Anything else is a bug."""


class InvalidRequest(UbError):
    """The caller asked for something that makes no sense."""


class NotFound(UbError):
    """The named thing does not exist on this host."""


class Conflict(UbError):
    """It exists, but not as requested."""


class Busy(UbError):
    """It will probably work later."""


class Exhausted(UbError):
    """The host has none left."""


class Unsupported(UbError):
    """This host, kernel or provider cannot do it at all; the message says what could."""


class HostFault(UbError):
    """The kernel, a driver or a daemon of the host refused; ``__cause__`` says why in its words."""


REASONS: tuple[type[UbError], ...] = (InvalidRequest, NotFound, Conflict, Busy, Exhausted, Unsupported, HostFault)


def code_for(error: UbError, codes: Mapping[type[UbError], Code]) -> Code:
    """Return the code of the nearest class of ``error`` in ``codes``.

    Raises:
        KeyError: no class of the error is in the table, which a test of every plugin rules out.
    """
    for kind in type(error).__mro__:
        if kind in codes:
            return codes[kind]
    raise KeyError(type(error))

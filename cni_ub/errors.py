"""The one place where reasons become CNI error codes.

Source: containernetworking/cni SPEC.md 1.1.0, section "Error"; reference/cni.md section 1.7. 100 and above are ours.
"""

from ubhost import errors


class UnsupportedField(errors.InvalidRequest):
    """A key of the configuration has a value that we do not know; the message names both."""


class BadEnvironment(errors.InvalidRequest):
    """A CNI_* variable is wrong; the message names it."""


class Undecodable(errors.InvalidRequest):
    """A document that others made (prevResult, an IPAM result) is not what it should be."""


class HostNamespace(errors.InvalidRequest):
    """CNI_NETNS is the host's own network namespace."""


class NotExpressible(errors.InvalidRequest):
    """The result has no form in the version that was asked for."""


class UnknownAttachment(errors.NotFound):
    """CHECK of something that was never ADDed, or was DELeted."""


class NamespaceRefused(errors.HostFault):
    """The driver refused to put a device or an EID into a namespace."""


class NotReady(errors.Unsupported):
    """STATUS: an ADD would fail now."""


class Limited(errors.Unsupported):
    """STATUS: an ADD would fail now, and containers that have an attachment may have lost their connectivity."""


class Drifted(errors.Conflict):
    """CHECK: something of the attachment is not as ADD left it."""


class Interrupted(errors.Busy):
    """We were told to stop, and took back what was done so far."""


class DelegateFailed(errors.UbError):
    """The IPAM plugin failed; its own code and message are passed on."""

    def __init__(self, message: str, code: int = 999, details: str = "") -> None:
        super().__init__(message)
        self.code, self.details = code, details


class DelegateMissing(DelegateFailed):
    """The IPAM plugin cannot be run here, so it holds nothing of an attachment that is new."""


CODES: dict[type[errors.UbError], int] = {
    UnsupportedField: 2,
    UnknownAttachment: 3,
    BadEnvironment: 4,
    errors.HostFault: 5,
    Undecodable: 6,
    errors.InvalidRequest: 7,
    HostNamespace: 8,
    errors.Busy: 11,
    errors.Exhausted: 11,
    NotReady: 50,
    Limited: 51,
    errors.NotFound: 100,
    errors.Conflict: 101,
    NamespaceRefused: 102,
    errors.Unsupported: 103,
    Drifted: 104,
    DelegateFailed: 999,
}
INTERNAL = 999

# Runtimes take a DEL that failed with these words for one that succeeded (go-cni cni.go Remove), and what we could
# not release would stay so for ever.
_SWALLOWED = (("not found", "absent"), ("no such file or directory", "missing file"))


def code_of(error: Exception) -> int:
    if isinstance(error, DelegateFailed):
        return error.code or INTERNAL
    return errors.code_for(error, CODES) if isinstance(error, errors.UbError) else INTERNAL


def retryable(message: str) -> str:
    """Return the text of a failed DEL in words that no runtime mistakes for success."""
    for words, ours in _SWALLOWED:
        while (at := message.lower().find(words)) >= 0:
            message = message[:at] + ours + message[at + len(words) :]
    return message

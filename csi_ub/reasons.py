"""Why a CSI call failed, where the words of ``ubhost.errors`` are not exact enough. Codes are in ``csi_ub.errors``."""

from ubhost import errors


class InUse(errors.Conflict):
    """The object must not be changed while somebody uses it; the message says who."""


class NotStaged(errors.Conflict):
    """The volume must be staged first."""


class OutOfRange(errors.InvalidRequest):
    """A size that cannot be had."""


class StaleToken(errors.Conflict):
    """A page token that this driver did not hand out, or whose list has gone."""


class Unreachable(errors.Busy):
    """The node that owns the volume, or a program that it takes, has not answered; a later try may find it back."""

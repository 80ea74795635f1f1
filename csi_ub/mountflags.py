"""Mount flags of a capability to attributes of one mount: an allow-list.

The values are the caller's secret (CSI marks them so), so an error names the position, never the flag.
"""

from collections.abc import Sequence

from csi_ub.model import Capability
from ubhost.errors import InvalidRequest
from ubhost.mounttable import Attribute

# As the mount table spells them.
OPTIONS = {
    "ro": Attribute.RDONLY,
    "nosuid": Attribute.NOSUID,
    "nodev": Attribute.NODEV,
    "noexec": Attribute.NOEXEC,
    "noatime": Attribute.NOATIME,
    "nodiratime": Attribute.NODIRATIME,
}
_KNOWN = {
    **OPTIONS,
    "rw": Attribute(0),
    "relatime": Attribute(0),
    "exec": Attribute(0),
}
# Pods fill a shared volume: what one of them leaves there must give nobody else rights.
_ALWAYS = Attribute.NOSUID | Attribute.NODEV


def attributes(capability: Capability, *, is_read_only: bool) -> Attribute:
    """Return what a mount for ``capability`` gets.

    Raises:
        InvalidRequest: a mount flag is none that we know.
    """
    found = _ALWAYS | _parse(capability.mount_flags)
    return found | Attribute.RDONLY if is_read_only or capability.mode.is_read_only else found


def options(attributes: Attribute) -> str:
    """Return attributes as people write them: ``ro,nosuid``."""
    names = [name for name, attribute in OPTIONS.items() if attribute & attributes]
    return ",".join(names if attributes & Attribute.RDONLY else ["rw", *names])


def _parse(flags: Sequence[str]) -> Attribute:
    found = Attribute(0)
    for index, text in enumerate(flags):
        for flag in text.split(","):
            if flag not in _KNOWN:
                raise InvalidRequest(f"mount_flags[{index}] is not supported; supported are {', '.join(_KNOWN)}")
            found |= _KNOWN[flag]
    return found

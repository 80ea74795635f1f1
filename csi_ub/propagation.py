"""Will others see what this driver mounts?

A driver in a container has a mount namespace of its own; kubelet and the pods see its mounts only if the folder they
are made in is shared (``mountPropagation: Bidirectional``). Without that every call would succeed, and every pod would
write to the root disk of the node instead. So the folder is judged before anything is mounted there.

A mount that receives from elsewhere but does not send (a slave) is wrong for certain. One that does neither is wrong
if the process that started us lives in another mount namespace; otherwise whoever shares our namespace sees it.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from ubhost.errors import Unsupported
from ubhost.kernel.mountinfo import Mount, containing


def check(mounts: Iterable[Mount], target: Path, *, is_alone: bool) -> None:
    """Raise ``Unsupported`` if a mount at ``target`` would be seen by this process only.

    ``is_alone``: the process that started this one lives in another mount namespace.
    """
    mount = containing(mounts, target)
    if mount.is_slave or (is_alone and not mount.is_shared):
        raise Unsupported(
            f"{target} lies on {mount.target}, which is not shared: pods would not see the volume. Mount the folder of "
            "kubelet into the driver's container with mountPropagation: Bidirectional"
        )


def is_alone() -> bool:
    """Whether our parent lives in another mount namespace; no, if that cannot be told."""
    try:
        return Path("/proc/self/ns/mnt").stat().st_ino != Path(f"/proc/{os.getppid()}/ns/mnt").stat().st_ino
    except OSError:
        return False

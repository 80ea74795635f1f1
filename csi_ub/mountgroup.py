"""VOLUME_MOUNT_GROUP: a volume belongs to a group of the pod's choice, in a time that does not grow with its files."""

import os
import stat
from pathlib import Path

from ubhost.errors import HostFault


def give(folder: int, group: int | None) -> None:
    """Let members of ``group`` write in ``folder`` (a descriptor), now and in what is made later; ``None``: as it is.

    The top folder only: a walk takes minutes.
    """
    if group is None:
        return
    path, state = f"/proc/self/fd/{folder}", os.fstat(folder)
    mode = stat.S_IMODE(state.st_mode) | stat.S_ISGID | stat.S_IRWXG
    try:
        if state.st_gid != group:
            os.chown(path, -1, group)
        if stat.S_IMODE(os.fstat(folder).st_mode) != mode:
            Path(path).chmod(mode)
    except OSError as error:
        raise HostFault(f"cannot give the volume to group {group}: {error.strerror}") from error

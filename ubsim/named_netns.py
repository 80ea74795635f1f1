"""Network namespaces that live by a file: a bind mount, as ``ip netns`` makes them, at any path.

Source: ip-netns(8), network_namespaces(7).
"""

import contextlib
import os
from pathlib import Path

from ubhost.errors import Conflict, HostFault
from ubhost.kernel import mounts
from ubhost.kernel.netns import new_netns
from ubsim.cables import Cables


def make(path: Path) -> None:
    """Make a namespace and keep it alive by a file at ``path``; its loopback is up.

    Raises:
        Conflict: there is such a file.
        HostFault: the kernel refused.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.touch(0o444, exist_ok=False)
    except FileExistsError:
        raise Conflict(f"there is a network namespace {path} already") from None
    try:
        _pin_new(path)
    except BaseException:
        path.unlink()
        raise


def _pin_new(path: Path) -> None:
    descriptor = new_netns()
    try:
        with Cables(descriptor, path.name) as cables:
            cables.set_up(cables.require("lo").index, up=True)
        mounts.bind(Path(f"/proc/self/fd/{descriptor}"), path)
    except OSError as error:
        raise HostFault(f"cannot keep a network namespace at {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove the file; the namespace dies with its last process. It may be gone already."""
    with contextlib.suppress(OSError):  # not mounted
        mounts.unmount(path, lazy=True)
    path.unlink(missing_ok=True)

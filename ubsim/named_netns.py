"""Network namespaces that live by a file: a bind mount, as ``ip netns`` makes them, at any path.

Source: ip-netns(8), network_namespaces(7).
"""

import contextlib
import ctypes
import os
import threading
from pathlib import Path

from ubhost.errors import Conflict, HostFault
from ubhost.kernel import mounts
from ubhost.kernel.netns import CLONE_NEWNET, open_netns
from ubsim.cables import Cables

MS_BIND = 4096

_libc = ctypes.CDLL(None, use_errno=True)


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
    failures: list[OSError] = []

    def enter_and_pin() -> None:  # on a thread of its own, which never comes back
        try:
            if _libc.unshare(CLONE_NEWNET) < 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            mounts.mount("/proc/thread-self/ns/net", path, "", flags=MS_BIND)
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=enter_and_pin, name=f"make {path.name}")
    thread.start()
    thread.join()
    if failures:
        path.unlink()
        raise HostFault(f"cannot make network namespace {path}: {failures[0].strerror or failures[0]}") from failures[0]
    descriptor = open_netns(str(path))
    try:
        with Cables(descriptor, path.name) as cables:
            cables.set_up(cables.require("lo").index, up=True)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove the file; the namespace dies with its last process. It may be gone already."""
    with contextlib.suppress(OSError):  # not mounted
        mounts.unmount(path, lazy=True)
    path.unlink(missing_ok=True)

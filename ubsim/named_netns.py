"""Network namespaces with a name, as ``ip netns`` makes them: a bind mount below /run/netns.

Source: ip-netns(8), network_namespaces(7).
"""

import contextlib
import ctypes
import os
import threading

from ubhost.errors import Conflict, HostFault
from ubhost.kernel import mounts
from ubhost.kernel.netns import CLONE_NEWNET, open_netns
from ubsim.cables import Cables
from ubsim.record import NETNS_FOLDER

MS_BIND = 4096

_libc = ctypes.CDLL(None, use_errno=True)


def make(name: str) -> None:
    """Make a namespace and keep it alive by its name; its loopback is up.

    Raises:
        Conflict: there is one of that name.
        HostFault: the kernel refused.
    """
    path = NETNS_FOLDER / name
    NETNS_FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        path.touch(0o444, exist_ok=False)
    except FileExistsError:
        raise Conflict(f"there is a network namespace {name} already") from None
    failures: list[OSError] = []

    def enter_and_pin() -> None:  # on a thread of its own, which never comes back
        try:
            if _libc.unshare(CLONE_NEWNET) < 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            mounts.mount("/proc/thread-self/ns/net", path, "", flags=MS_BIND)
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=enter_and_pin, name=f"netns {name}")
    thread.start()
    thread.join()
    if failures:
        path.unlink()
        raise HostFault(f"cannot make network namespace {name}: {failures[0].strerror or failures[0]}") from failures[0]
    descriptor = open_netns(str(path))
    try:
        with Cables(descriptor, name) as cables:
            cables.set_up(cables.require("lo").index, up=True)
    finally:
        os.close(descriptor)


def remove(name: str) -> None:
    """Forget the name; the namespace dies with its last process. It may be gone already."""
    path = NETNS_FOLDER / name
    with contextlib.suppress(OSError):  # not mounted
        mounts.unmount(path, lazy=True)
    path.unlink(missing_ok=True)

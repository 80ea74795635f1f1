"""Network namespaces: open one safely, know which it is, visit it with one thread.

A descriptor is the only handle we keep: a path may be replaced between two look-ups, a descriptor cannot.

Source: namespaces(7), setns(2), ioctl_ns(2).
"""

import ctypes
import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ubhost.errors import HostFault, InvalidRequest, NotFound

CLONE_NEWNET = 0x40000000
NS_GET_NSTYPE = 0xB703  # _IO(0xb7, 3)
OWN = Path("/proc/thread-self/ns/net")

_libc = ctypes.CDLL(None, use_errno=True)


class Gone(NotFound):
    """There is no such namespace any more."""


def open_netns(path: str) -> int:
    """Return a descriptor of the network namespace at ``path``.

    Raises:
        Gone: there is no such path.
        InvalidRequest: it is something else than a network namespace.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not hold us up
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESRCH):
            raise Gone(f"network namespace {path} does not exist") from error
        raise InvalidRequest(f"network namespace {path} cannot be opened: {error.strerror}") from error
    if not is_netns(fd):
        os.close(fd)
        raise InvalidRequest(f"{path} is not a network namespace")
    return fd


def is_netns(fd: int) -> bool:
    try:
        return bool(fcntl.ioctl(fd, NS_GET_NSTYPE) == CLONE_NEWNET)
    except OSError:
        return False


def inode(fd: int) -> int:
    """Return what tells one living namespace from every other; it is used again after a namespace died."""
    return os.fstat(fd).st_ino


def own_inode() -> int:
    """Return what tells the namespace of the calling thread."""
    return OWN.stat().st_ino


@contextmanager
def visiting(fd: int) -> Iterator[None]:
    """Run the body with this thread, and no other, in the namespace ``fd``.

    Raises:
        HostFault: it cannot be entered.
    """
    here = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            enter(fd)
        except OSError as error:
            raise HostFault(f"cannot enter network namespace {inode(fd)}: {error.strerror}") from error
        try:
            yield
        finally:
            _return(here)
    finally:
        os.close(here)


def _return(here: int) -> None:
    try:
        enter(here)
    except OSError:  # a thread lost in a pod's namespace must not serve the next request
        os.abort()


def enter(fd: int) -> None:  # os.setns from Python 3.12 on
    """Take this thread into the namespace ``fd`` for good. Raises ``OSError``."""
    _checked(_libc.setns(fd, CLONE_NEWNET))


def new_netns() -> int:
    """Return the descriptor of a new network namespace; it dies with the last that refers to it.

    Raises:
        HostFault: the kernel refused.
    """
    result: list[int | OSError] = []

    def make() -> None:  # a thread of its own: no way leads back from an unshared namespace without risk
        try:
            _checked(_libc.unshare(CLONE_NEWNET))
            result.append(os.open(OWN, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            result.append(error)

    thread = threading.Thread(target=make, name="new-netns")
    thread.start()
    thread.join()
    (made,) = result
    if isinstance(made, OSError):
        raise HostFault(f"cannot make a network namespace: {made.strerror}") from made
    return made


def _checked(result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def find_netns(wanted: int) -> int | None:
    """Return a descriptor of the living namespace with inode ``wanted``, looked for at processes and named ones.

    It costs one stat() a process, so it is for repair only.
    """
    for path in _known():
        try:
            if path.stat().st_ino != wanted:
                continue
            return open_netns(str(path))
        except (OSError, NotFound, InvalidRequest):
            continue
    return None


def living() -> frozenset[int]:
    """Return the inodes of all namespaces that have a process or a name under /run/netns or /var/run."""
    found = set()
    for path in _known():
        try:
            found.add(path.stat().st_ino)
        except OSError:
            continue
    return frozenset(found)


def _known() -> Iterator[Path]:
    for folder in (Path("/run/netns"), Path("/var/run/netns"), Path("/run/docker/netns")):
        if folder.is_dir():
            yield from (entry for entry in folder.iterdir() if not stat.S_ISDIR(entry.lstat().st_mode))
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            yield process / "ns/net"

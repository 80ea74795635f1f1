"""Locks by name, between threads and between processes: flock(2) on a file that exists while it is held.

A lock dies with its holder, so a killed driver leaves none behind. Two drivers may share a pool (a rolling update,
or two simulated nodes of one machine); they share its locks too.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ubhost.errors import Busy

PATIENCE_S = 5.0  # the callers of CSI give up after 15 s; a call that waits longer would only pile up
_POLL_S = (0.001, 0.02)  # first and longest pause


@contextmanager
def hold(folder: Path, name: str, *, wait_s: float = PATIENCE_S) -> Iterator[None]:
    """Hold the lock ``name`` of ``folder`` inside the body.

    Raises:
        Busy: another call held it for ``wait_s``.
    """
    path = folder / hashlib.sha256(name.encode()).hexdigest()  # a name may be anything a caller sent
    descriptor = _acquire(path, name, time.monotonic() + wait_s)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while we hold it: whoever waits notices and makes a new one
        os.close(descriptor)


def _acquire(path: Path, name: str, deadline: float) -> int:
    pause, longest = _POLL_S
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            if time.monotonic() > deadline:
                raise Busy(f"another call is working on {name}") from None
            time.sleep(pause)
            pause = min(pause * 2, longest)
            continue
        if _is_at(path, descriptor):
            return descriptor
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether ``path`` still names the open file: its last holder may have removed it before we got the lock."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False

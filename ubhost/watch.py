"""Look again whenever something may have changed.

The kernel's notices say when; what changed is found by comparing two looks. Between notices we look once in
``BACK_STOP_S``, and after one only when it has been quiet for a moment, since hot-plug comes in bursts.
"""

import logging
import select
import time
from collections.abc import Callable, Iterator

from ubhost.changes import Change, changes
from ubhost.discovery import Discovery
from ubhost.errors import UbError
from ubhost.uevents import BACK_STOP_S, Uevents

QUIET_S = 0.05
LONGEST_BURST_S = 0.5  # look in the middle of a longer one

log = logging.getLogger(__name__)


def watch(look: Callable[[], Discovery], uevents: Uevents) -> Iterator[tuple[Discovery, tuple[Change, ...]]]:
    """Yield the first look, and then every look that shows something else than the one before.

    A look that fails is logged and tried again: a host that is changing may be half there.

    Raises:
        UbError: the first look failed.
    """
    before = look()
    yield before, ()
    while True:
        wait(uevents)
        try:
            after = look()
        except UbError as error:
            log.warning("cannot look at the host now", extra={"reason": str(error)})
            continue
        found = changes(before, after)
        before = after
        if found:
            yield after, found


def wait(uevents: Uevents, timeout_s: float = BACK_STOP_S) -> bool:
    """Wait for news, and until they are over; return whether there were any."""
    if not _is_readable(uevents, timeout_s):
        uevents.read()  # finds a simulator that came back
        return False
    deadline = time.monotonic() + LONGEST_BURST_S
    relevant = False
    while True:
        batch = uevents.read()
        relevant = relevant or batch.lost or bool(batch.events)
        if time.monotonic() >= deadline or not _is_readable(uevents, QUIET_S):
            return relevant


def _is_readable(uevents: Uevents, timeout_s: float) -> bool:
    return bool(select.select([uevents], [], [], timeout_s)[0])

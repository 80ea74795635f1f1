"""Wait for what must come to hold; how long it takes is no matter of a test."""

import time
from collections.abc import Callable


def wait_for(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)

"""Calls that may hang, in bounds: a dead network file system must not take the driver's threads one by one."""

import threading
from collections.abc import Callable
from typing import TypeVar

from csi_ub.errors import Unreachable

T = TypeVar("T")


class Bounded:
    """Runs calls by key. While one of a key hangs, the next of that key fails at once; so one thread a key is lost."""

    def __init__(self) -> None:
        self._running: set[str] = set()
        self._lock = threading.Lock()

    def run(self, key: str, call: Callable[[], T], timeout_s: float) -> T:
        """Return what ``call`` returns, or raise what it raises.

        Raises:
            Unreachable: it took longer than ``timeout_s``, or an earlier one has not come back yet.
        """
        with self._lock:
            if key in self._running:
                raise Unreachable(f"{key} does not answer")
            self._running.add(key)
        result: list[T] = []
        failure: list[BaseException] = []

        def work() -> None:
            try:
                result.append(call())
            except BaseException as error:  # handed to the caller below
                failure.append(error)
            finally:
                with self._lock:
                    self._running.discard(key)

        thread = threading.Thread(target=work, name=f"bounded {key}", daemon=True)
        thread.start()
        thread.join(timeout_s)
        if thread.is_alive():
            raise Unreachable(f"{key} has not answered for {timeout_s} s")
        if failure:
            raise failure[0]
        return result[0]

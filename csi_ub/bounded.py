"""Calls that may hang, in bounds: a dead network file system must not take the driver's threads one by one."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from csi_ub.reasons import Unreachable
from ubhost.errors import UbError

T = TypeVar("T")


class Bounded:
    """Runs calls by key, one of a key at a time: whoever asks meanwhile gets the same answer.

    So a call that never comes back costs one thread, however often it is asked for.
    """

    def __init__(self) -> None:
        self._running: dict[str, Future[Any]] = {}
        self._lock = threading.Lock()

    def run(self, key: str, call: Callable[[], T], timeout_s: float) -> T:
        """Return what ``call`` returns, or raise what it raises.

        Raises:
            Unreachable: no answer within ``timeout_s``.
        """
        with self._lock:
            future = self._running.get(key)
            if future is None:
                future = self._running[key] = Future()
                threading.Thread(target=self._work, args=(key, call, future), daemon=True).start()
        try:
            answer: T = future.result(timeout_s)
        except TimeoutError:
            if future.done():
                raise  # the call's own
            raise Unreachable(f"{key} has not answered for {timeout_s} s") from None
        return answer

    def succeeds(self, key: str, call: Callable[[], object], timeout_s: float) -> bool:
        """Whether ``call`` returns within ``timeout_s``, whatever it returns."""
        try:
            self.run(key, call, timeout_s)
        except (OSError, UbError):
            return False
        return True

    def _work(self, key: str, call: Callable[[], T], future: Future[T]) -> None:
        try:
            result = call()
        except BaseException as error:  # whoever waits raises it
            self._forget(key)
            future.set_exception(error)
        else:
            self._forget(key)
            future.set_result(result)

    def _forget(self, key: str) -> None:
        with self._lock:
            del self._running[key]

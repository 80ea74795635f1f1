"""Do two independent things at once, for the time that one of them spends waiting for the kernel."""

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[None]:
    """Run ``work`` in a thread of its own while the body runs; both have ended when this returns.

    Raises:
        Exception: what the body raised; if it raised nothing, what ``work`` did.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="beside")
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if failures:
        raise failures[0]

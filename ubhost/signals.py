"""The end of a daemon: SIGTERM and SIGINT as an event.

A handler must not call ``Event.set`` itself: it runs in the main thread, and where that is just entering
``Event.wait`` it holds the lock that ``set`` waits for. So the interpreter writes to a pipe, and a thread sets it.
"""

import os
import signal
import threading


def until_told() -> threading.Event:
    """Return an event that is set by SIGTERM or SIGINT. Call it once, in the main thread."""
    stop = threading.Event()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)

    def listen() -> None:
        while os.read(reader, 1)[0] not in (signal.SIGTERM, signal.SIGINT):
            pass  # some other signal that has a handler
        stop.set()

    threading.Thread(target=listen, name="signals", daemon=True).start()
    return stop

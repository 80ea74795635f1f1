"""The end of a daemon: SIGTERM and SIGINT as something to wait for.

A handler in Python cannot end a wait. It runs when the main thread is back from the kernel, and a signal that comes as
that thread is just going there does not bring it back; nor must it call ``Event.set``: where the main thread is just
entering ``Event.wait``, it holds the lock that ``set`` waits for. So the interpreter itself writes to a pipe.
"""

import os
import signal
import threading


def told() -> int:
    """Return a descriptor that can be read once SIGTERM or SIGINT has come. Call it once, in the main thread."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return reader


def until_told() -> threading.Event:
    """Return an event that is set by SIGTERM or SIGINT. Call it once, in the main thread."""
    stop, reader = threading.Event(), told()

    def listen() -> None:
        while os.read(reader, 1)[0] not in (signal.SIGTERM, signal.SIGINT):
            pass  # some other signal that has a handler
        stop.set()

    threading.Thread(target=listen, name="signals", daemon=True).start()
    return stop

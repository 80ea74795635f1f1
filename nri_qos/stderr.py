"""A stderr that never makes its writer wait.

Handlers log, and a log collector that stops reading its pipe would otherwise stop them, and cost the session with the
runtime. Lines go through a queue to a thread; when the queue is full they are dropped, and the count is written
once there is room.
"""

import contextlib
import io
import os
import queue
import select
import threading


class PatientStderr(io.TextIOBase):
    """For ``ubhost.log.set_up``; ``close()`` waits a moment for the last lines."""

    def __init__(self, fd: int = 2, capacity: int = 10_000) -> None:
        self._fd = fd
        self._lines: queue.Queue[str | None] = queue.Queue(capacity)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)
        self._thread.start()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self._dropped += 1
        return len(text)

    def close(self) -> None:
        if not self.closed:
            with contextlib.suppress(queue.Full):
                self._lines.put_nowait(None)
            self._thread.join(timeout=1)
        super().close()

    def _run(self) -> None:
        while (text := self._lines.get()) is not None:
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                text = f'{{"level":"warning","message":"log lines were dropped","count":{dropped}}}\n{text}'
            data = text.encode(errors="replace")
            while data:
                try:
                    data = data[os.write(self._fd, data) :]
                except BlockingIOError:  # somebody who has the same pipe made it so
                    select.select([], [self._fd], [])
                except OSError:  # nobody reads any more
                    return

"""Logs: one JSON object a line on stderr.

The message is a constant sentence and the data goes into ``extra=``, so that a log can be searched by what
happened. Ids that belong to everything a thread does for one request are set once by ``ids(...)``.
"""

import json
import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

_ids: ContextVar[dict[str, str]] = ContextVar("ids", default={})  # noqa: B039 - never changed in place
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@contextmanager
def ids(**values: str) -> Iterator[None]:
    """Add ids (pod, container, volume, trace id) to every line logged by this thread inside the body."""
    token = _ids.set({**_ids.get(), **values})
    try:
        yield
    finally:
        _ids.reset(token)


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_ids.get(),
        }
        line.update((key, value) for key, value in vars(record).items() if key not in _STANDARD)
        if record.exc_info and record.exc_info[0]:
            line["trace"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line, default=str, ensure_ascii=False)


def set_up(level: str = "info", stream: TextIO | None = None) -> None:
    """Send the logs of this process to ``stream`` (stderr), from ``level`` upward."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())

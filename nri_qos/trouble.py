"""What keeps a thread from its work: survived, and told when it begins or changes, not at each turn."""

import logging
from types import TracebackType
from typing import Self

from ubhost.errors import UbError


class Trouble:
    """``with trouble: turn()`` goes on after whatever the turn raises."""

    def __init__(self, log: logging.Logger, message: str) -> None:
        self._log = log
        self._message = message
        self._told = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None and not isinstance(error, Exception):
            return False
        text = "" if error is None else repr(error)
        if text and text != self._told:
            unforeseen = None if isinstance(error, UbError) else error
            self._log.error(self._message, extra={"error": str(error)}, exc_info=unforeseen)
        self._told = text
        return True

    @property
    def is_there(self) -> bool:
        """Whether the last turn failed."""
        return bool(self._told)

"""The logs of data daemons. They lie in memory, below /run, and nobody rotates them."""

import os
from contextlib import suppress
from pathlib import Path

from ubhost.errors import HostFault

_LARGEST = 1 << 20  # bytes
_KEPT = 64 << 10  # bytes, of what came last


def trim(log: Path) -> None:
    """Empty a log that has grown large; its end is kept beside it. Its daemon appends, so it need not be told.

    Raises:
        HostFault: it cannot be.
    """
    try:
        with suppress(FileNotFoundError):
            if (size := log.stat().st_size) <= _LARGEST:
                return
            with log.open("rb") as file:
                file.seek(size - _KEPT)
                end = file.read(_KEPT)
            os.truncate(log, 0)  # what comes between the two is lost
            log.with_name(f"{log.name}.old").write_bytes(end)
    except OSError as error:
        raise HostFault(f"cannot trim {log}: {error.strerror}") from error

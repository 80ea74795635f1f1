"""The file that a volume of type block consists of: ``disk`` in its ``data``, as long as the volume is large.

It is sparse: space is taken as the device is written, and given back by discards. So a pool can promise more than it
has, and a quota is not needed: a file never grows by itself.
"""

import os
import stat
from pathlib import Path

from csi_ub.reasons import OutOfRange
from ubhost.errors import HostFault, InvalidRequest
from ubhost.kernel.beneath import open_beneath

NAME = "disk"
_BLOCK = 4096  # bytes, what programs take for the block of a disk
_SMALLEST, _USUAL = 1 << 20, 1 << 30


def rounded(size: int, limit: int) -> int:
    """Return the bytes of a device that must have ``size`` (0: not said): whole blocks.

    Raises:
        OutOfRange: that is more than ``limit`` (0: none).
    """
    whole = -(-max(size or min(_USUAL, limit or _USUAL), _SMALLEST) // _BLOCK) * _BLOCK
    if limit and whole > limit:
        raise OutOfRange(
            f"a device has whole blocks of {_BLOCK} bytes and at least {_SMALLEST}: {whole} is over {limit}"
        )
    return whole


def make(data: Path, size: int) -> None:
    """Let ``data`` have a disk of at least ``size`` bytes: a new one is all zeroes, one that is there only grows."""
    folder = os.open(data, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        file = open_beneath(folder, NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _grow(file, size)
        finally:
            os.close(file)
    except OSError as error:
        raise HostFault(f"cannot make a disk of {size} bytes in {data}: {error.strerror}") from error
    finally:
        os.close(folder)


def check(share: Path, name: str) -> None:
    """Raise ``InvalidRequest`` if a volume of type block cannot be made from ``share``, that of ``name``."""
    if not (share / "data" / NAME).is_file():
        raise InvalidRequest(f"{name} is not of a volume of type block: it has no device to copy")


def open_disk(data: int, size: int, *, is_read_only: bool) -> int:
    """Return a descriptor of the disk in the open folder ``data``, which has at least ``size`` bytes then.

    Raises:
        HostFault: there is none, or it cannot grow.
    """
    try:
        file = open_beneath(data, NAME, os.O_RDONLY if is_read_only else os.O_RDWR)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise HostFault(f"{NAME} of the volume is no file")
            if not is_read_only:
                _grow(file, size)
        except BaseException:
            os.close(file)
            raise
        return file
    except OSError as error:
        raise HostFault(f"cannot open the disk of the volume: {error.strerror}") from error


def _grow(file: int, size: int) -> None:
    if os.fstat(file).st_size < size:
        os.ftruncate(file, size)

"""A DAX device of this node: memory with a device node that can be mapped, and neither read nor written.

CXL memory that several hosts see, or a shared nvdimm of guests. Whoever has the device node can map all of it, so what
is to be given away in parts is divided into devices first (daxctl, ndctl), not here.

Source: Linux Documentation/ABI/testing/sysfs-bus-dax, drivers/dax/device.c.
"""

import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path

from ubhost.errors import HostFault, NotFound
from ubhost.kernel import caches

_CHUNK = 64 << 20  # bytes between two looks at the clock
_DRIVER = "device_dax"


@dataclass(frozen=True, slots=True)
class Dax:
    """Device ``name`` of ``size`` bytes, mapped in multiples of ``align``."""

    name: str
    size: int
    align: int


def look(sys: Path, name: str) -> Dax:
    """Return what the kernel tells of a device.

    Raises:
        NotFound: there is none.
        HostFault: it cannot be mapped: it is in use as main memory, or has no bytes.
    """
    folder = sys / "bus/dax/devices" / name
    try:
        found = Dax(name, *(int((folder / fact).read_text()) for fact in ("size", "align")))
    except FileNotFoundError:
        raise NotFound(f"there is no DAX device {name}: see `daxctl list`, and `modprobe device_dax`") from None
    except (OSError, ValueError) as error:
        raise HostFault(f"DAX device {name} cannot be looked at: {error}") from error
    driver = (folder / "driver").resolve().name if (folder / "driver").is_symlink() else _DRIVER
    if driver != _DRIVER:
        raise HostFault(f"DAX device {name} has driver {driver}: `daxctl reconfigure-device --mode=devdax {name}`")
    if not found.size:
        raise HostFault(f"DAX device {name} has no bytes: see `daxctl list`")
    return found


def zero(node: Path, dax: Dax, start: int, until: float, *, is_coherent: bool) -> int:
    """Fill the device with zeroes from ``start`` on; return how far that came by the moment ``until`` (monotonic).

    The kernel stores them, by read(2) from /dev/zero: memory with a defect is then an error, and not our end (SIGBUS).

    Raises:
        HostFault: some of it cannot be written.
        Unsupported: the memory is not coherent, and nothing here takes it out of the caches.
    """
    try:
        with _mapped(node, dax.size) as mapped, memoryview(mapped) as view, Path("/dev/zero").open("rb", 0) as zeroes:
            while start < dax.size:
                with view[start : start + _CHUNK] as chunk:
                    start += zeroes.readinto(chunk)
                    if not is_coherent:
                        caches.drop(chunk)
                if time.monotonic() > until:
                    break
    except OSError as error:
        raise HostFault(f"{node} cannot be filled with zeroes at {start}: {error.strerror}") from error
    return start


def drop_caches(node: Path, dax: Dax) -> None:
    """Return when no cache of this machine holds anything of the device: what was stored is in the memory.

    Raises:
        HostFault: it cannot be mapped.
        Unsupported: nothing here can do that.
    """
    try:
        with _mapped(node, dax.size) as mapped, memoryview(mapped) as view:
            caches.drop(view)
    except OSError as error:
        raise HostFault(f"{node} cannot be mapped: {error.strerror}") from error


def _mapped(node: Path, size: int) -> mmap.mmap:
    descriptor = os.open(node, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)

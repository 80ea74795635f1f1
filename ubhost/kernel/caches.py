"""Take memory out of the caches of this machine's processors: written back, and not believed any more.

msync(2) does that for no DAX device, and no other call does. It takes the processor's own instructions, which libpmem
has (CLFLUSHOPT; its CLWB alone would leave in the cache what another machine has replaced meanwhile). On Arm it cleans
lines without dropping them, which is not enough.

Source: PMDK src/libpmem, pmem_deep_flush(3), libpmem(7) for the environment.
"""

import ctypes
import os
import platform

from ubhost.errors import Unsupported

LIBRARY = "libpmem.so.1"
_FORCED = {"PMEM_NO_CLWB": "1", "PMEM_NO_FLUSH": "0"}


def drop(memory: memoryview, library: str = LIBRARY) -> None:
    """Return when no cache of this machine holds anything of ``memory``, which may be written.

    Raises:
        Unsupported: that cannot be done here.
    """
    flush, drain = _calls(library)
    place = (ctypes.c_char * len(memory)).from_buffer(memory)
    flush(ctypes.addressof(place), len(memory))
    drain()


def check(library: str = LIBRARY) -> None:
    """Raise ``Unsupported`` if ``drop`` would."""
    _calls(library)


def _calls(library: str) -> "tuple[ctypes._NamedFuncPointer, ctypes._NamedFuncPointer]":
    if platform.machine() != "x86_64":
        raise Unsupported(f"no program can drop lines from the caches of a processor of type {platform.machine()}")
    os.environ.update(_FORCED)  # read when the library is loaded
    try:
        found = ctypes.CDLL(library)
    except OSError:
        raise Unsupported(f"{library} is not installed (libpmem1, libpmem), which drops lines from caches") from None
    found.pmem_deep_flush.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    found.pmem_deep_flush.restype = found.pmem_drain.restype = None
    return found.pmem_deep_flush, found.pmem_drain

"""Memory shared over the bus: OBMM regions and the pools they are lent from.

Source: reference/ub.md section 6.1 (obmm documentation; kernel drivers/ub/obmm).
"""

from ubhost.model import MemoryPool, SharedMemory
from ubhost.sysfs.attributes import Folder, Unreadable

MAX_REGIONS = 10**9
MAX_NUMA = 1024
INFO = {
    "export": ("memory_from_user", "node_mem_size", "tokenid", "uba", "deid"),
    "import": ("pa", "scna", "dcna", "seid", "deid", "preimport"),
}


def read_regions(folder: Folder) -> tuple[SharedMemory, ...]:
    """Return the regions of ``/sys/devices/obmm``, by id.

    Raises:
        Unreadable: an attribute makes no sense.
    """
    return tuple(_region(id_, region) for id_, region in folder.numbered("obmm_shmdev", MAX_REGIONS))


def read_pools(folder: Folder) -> tuple[MemoryPool, ...]:
    """Return the pools of ``/sys/kernel/obmm_mempool``, by NUMA node.

    Raises:
        Unreadable: an attribute makes no sense.
    """
    sizes = ("total", "used", "available_cleared", "available_uncleared")
    return tuple(
        MemoryPool(numa, *(pool.number(name) for name in sizes)) for numa, pool in folder.numbered("obmm-", MAX_NUMA)
    )


def _region(id_: int, folder: Folder) -> SharedMemory:
    kind = folder.text("type")
    if kind not in (None, "export", "import"):
        raise Unreadable(f"{folder.path}/type: {kind!r} makes no sense: expected export or import")
    info = folder / f"{kind}_info"
    numa = info.number("numa_id") if kind == "import" else None
    details = {name: text for name in INFO.get(kind or "", ()) if (text := info.text(name)) is not None}
    return SharedMemory(
        id=id_,
        type=kind,
        size=folder.hexadecimal("size"),
        allow_mmap=folder.flag("allow_mmap"),
        numa=None if numa is None or numa < 0 else numa,
        details=details,
    )

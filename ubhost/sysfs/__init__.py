"""What the kernel tells of a UB host, read from its sysfs.

    host = read_host(Roots.from_environ())

Nothing here changes anything. ``attributes`` has the rules for untrusted text; the other modules know one corner of
the tree each.
"""

from collections.abc import Callable
from typing import TypeVar

from ubhost.model import UbBus, UbHost
from ubhost.roots import Roots
from ubhost.sysfs.attributes import Folder, Unreadable
from ubhost.sysfs.entities import read_bus, read_entities
from ubhost.sysfs.memory import read_pools, read_regions
from ubhost.sysfs.numa import read_numa
from ubhost.sysfs.urma import read_devices

__all__ = ["Folder", "Unreadable", "read_host"]


T = TypeVar("T")


def read_host(roots: Roots) -> UbHost:
    """Return everything found, as the reader's own network namespace sees it; what is missing is ``None`` or empty.

    What makes no sense is named, and hides nothing else: a device or an entity has its ``fault``; of the bus, of NUMA
    and of memory the part that is broken is left out, and the host has the fault.

    Raises:
        Unreadable: a device or an entity has a name that no driver gives.
    """
    sys = Folder(roots.sys)
    faults: list[str] = []

    def sound(read: Callable[[Folder], T], folder: Folder, otherwise: T) -> T:
        try:
            return read(folder)
        except Unreadable as error:
            faults.append(str(error))
            return otherwise

    return UbHost(
        is_ub_platform=(sys / "firmware/acpi/tables" / "UBRT").exists,
        devices=read_devices(sys / "class/ubcore"),
        entities=read_entities(sys / "bus/ub"),
        numa=sound(read_numa, sys / "devices/system/node", ()),
        shared_memory=sound(read_regions, sys / "devices/obmm", ()),
        bus=sound(read_bus, sys / "bus/ub", UbBus()),
        memory_pools=sound(read_pools, sys / "kernel/obmm_mempool", ()),
        faults=tuple(faults),
    )

"""What the kernel tells of a UB host, read from its sysfs.

    host = read_host(Roots.from_environ())

Nothing here changes anything. ``attributes`` has the rules for untrusted text; the other modules know one corner of
the tree each.
"""

from ubhost.model import UbHost
from ubhost.roots import Roots
from ubhost.sysfs.attributes import Folder, Unreadable
from ubhost.sysfs.entities import read_bus, read_entities
from ubhost.sysfs.memory import read_pools, read_regions
from ubhost.sysfs.numa import read_numa
from ubhost.sysfs.urma import read_devices

__all__ = ["Folder", "Unreadable", "read_host"]


def read_host(roots: Roots) -> UbHost:
    """Return everything found, as the reader's own network namespace sees it; what is missing is ``None`` or empty.

    Raises:
        Unreadable: something is there that makes no sense; its path is named.
    """
    sys = Folder(roots.sys)
    return UbHost(
        is_ub_platform=(sys / "firmware/acpi/tables" / "UBRT").exists,
        devices=read_devices(sys / "class/ubcore"),
        entities=read_entities(sys / "bus/ub"),
        numa=read_numa(sys / "devices/system/node"),
        shared_memory=read_regions(sys / "devices/obmm"),
        bus=read_bus(sys / "bus/ub"),
        memory_pools=read_pools(sys / "kernel/obmm_mempool"),
    )

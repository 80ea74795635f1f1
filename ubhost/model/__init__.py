"""What a UB host looks like: plain values, no input or output.

A value that the host does not tell is ``None``, never a guess. Enumerations keep the kernel's numbers.
"""

from ubhost.model.bus import BusInstance, DirectLink, EntityPort, UbBus, UbEntity
from ubhost.model.eid import Eid
from ubhost.model.host import Position, UbHost
from ubhost.model.link import Interface, Link, Network, Rate, Route
from ubhost.model.memory import HugePages, MemoryPool, NumaNode, SharedMemory
from ubhost.model.urma import Mtu, PortState, Priority, Speed, TransMode, Transport, UrmaDevice, UrmaPort, Width

__all__ = [
    "BusInstance",
    "DirectLink",
    "Eid",
    "EntityPort",
    "HugePages",
    "Interface",
    "Link",
    "MemoryPool",
    "Mtu",
    "Network",
    "NumaNode",
    "PortState",
    "Position",
    "Priority",
    "Rate",
    "Route",
    "SharedMemory",
    "Speed",
    "TransMode",
    "Transport",
    "UbBus",
    "UbEntity",
    "UbHost",
    "UrmaDevice",
    "UrmaPort",
    "Width",
]

"""What a scenario file says, and the super-node that it means.

A file is short: what it leaves out has a default, and ``count`` repeats a node. ``ubsim.expansion``
makes of it the ``SuperNode`` with everything spelled out (every device, EID, port and link), and
``ubsim.consistency`` refuses one that could not exist.

Numbers follow the typical machine of reference/ub.md section 5: 2 IO dies with 9 ports each, and per URMA device
a bonding device over one entity on each die.
"""

from dataclasses import dataclass, field
from enum import Enum

from ubhost.errors import InvalidRequest
from ubhost.model import Eid, Mtu, PortState, Speed, Width
from ubhost.provider import Sharing

PORTS_PER_DIE = 9
EID_PREFIX = 0x42454944  # first word of primary and port EIDs: "BEID", as in the samples of umdk


class Netns(Enum):
    """Where the netdevs of a node live: where ``sim up`` ran, or in a namespace made for the node."""

    HOST = "host"
    OWN = "own"


class Wiring(Enum):
    """How the nodes are joined when the file lists no links; one plane per die in each case."""

    NONE = "none"
    FULL_MESH = "full-mesh"  # 1D: every node one hop from every other
    MESH_2D = "mesh-2d"  # a grid: every node one hop from its row and its column
    CLOS = "clos"  # every port to a switch of its plane
    AUTO = "auto"  # full mesh while the ports suffice, else clos


# The file


@dataclass(frozen=True, slots=True)
class NumaEntry:
    """A NUMA node. Without ``cpus`` it is memory only, such as memory borrowed from the node ``borrowed_from``."""

    memory: str = "16GiB"
    cpus: str = ""
    borrowed_from: str | None = None
    hugepages_2m: int = 0


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """What one URMA device has that the generated one would not: health, sharing, EIDs of its own."""

    name: str
    sharing: Sharing | None = None
    healthy: bool = True
    active: bool = True
    bonding_eid: str | None = None
    primary_eids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PortEntry:
    """A port that differs: ``port`` is CHIP/DIE/PORT, such as ``0/1/3``."""

    port: str
    state: str = "ACTIVE"
    speed: str = "SP_400G"
    width: str = "X4"
    mtu: str = "MTU_4096"


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One node, or ``count`` alike: then ``name`` is the stem of node0, node1 …"""

    name: str = "node"
    count: int = 1
    slot_id: int | None = None
    host_name: str | None = None
    chips: int = 1
    dies_per_chip: int = 2
    ports_per_die: int = PORTS_PER_DIE
    devices: int = 2
    device_overrides: tuple[DeviceEntry, ...] = ()
    port_overrides: tuple[PortEntry, ...] = ()
    numa: tuple[NumaEntry, ...] = ()
    die_numa: tuple[int, ...] = ()  # NUMA node of each die; default: spread over those with CPUs
    distances: tuple[tuple[int, ...], ...] = ()
    netns: Netns = Netns.HOST


@dataclass(frozen=True, slots=True)
class LinkEntry:
    """A cable between two ports, each NODE/CHIP/DIE/PORT."""

    a: str
    b: str
    up: bool = True
    latency_us: float = 0.0
    bandwidth_mbps: int = 0


@dataclass(frozen=True, slots=True)
class RegionEntry:
    """Shared UB memory: exported by ``owner``, imported by ``importers``."""

    name: str
    owner: str
    importers: tuple[str, ...]
    size: str = "128MiB"
    cacheable: bool = False


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    name: str
    nodes: tuple[NodeEntry, ...]
    super_node_id: int = 1
    sharing: Sharing = Sharing.EXCLUSIVE
    eid_sharing: bool = False
    ubse_owners: bool = True  # false: UBSE gives a device to whoever asks, and frees nothing
    wiring: Wiring = Wiring.AUTO
    links: tuple[LinkEntry, ...] = ()
    shared_memory: tuple[RegionEntry, ...] = ()


# What it means


@dataclass(frozen=True, slots=True, order=True)
class PortId:
    node: str
    chip: int
    die: int
    port: int

    def __str__(self) -> str:
        return f"{self.node}/{self.chip}/{self.die}/{self.port}"


@dataclass(frozen=True, slots=True)
class Port:
    id: PortId
    state: PortState = PortState.ACTIVE
    speed: Speed = Speed.SP_400G
    width: Width = Width.X4
    mtu: Mtu = Mtu.MTU_4096


@dataclass(frozen=True, slots=True)
class Urma:
    """A bonding device over one entity on each of two dies. ``name`` is UBSE's; the host's own device has none."""

    name: str | None
    bonding: str
    members: tuple[str, str]
    dies: tuple[tuple[int, int], tuple[int, int]]  # (chip, die) of each member
    entities: tuple[int, int]  # entity index on its die; 0 is the managing entity
    bonding_eid: Eid
    member_eids: tuple[tuple[Eid, ...], tuple[Eid, ...]]  # primary EID, then one per port
    is_unique: bool = True
    is_healthy: bool = True
    is_active: bool = True


@dataclass(frozen=True, slots=True)
class Numa:
    """Sizes in bytes."""

    id: int
    memory: int
    cpus: tuple[int, ...] = ()
    borrowed_from: str | None = None
    hugepages_2m: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    slot_id: int
    host_name: str
    ports: tuple[Port, ...]
    devices: tuple[Urma, ...]  # the host's own first
    numa: tuple[Numa, ...]
    distances: tuple[tuple[int, ...], ...]
    die_numa: tuple[int, ...]
    netns: Netns = Netns.HOST

    @property
    def dies(self) -> tuple[tuple[int, int], ...]:
        """Every (chip, die), in order."""
        return tuple(sorted({(port.id.chip, port.id.die) for port in self.ports}))


@dataclass(frozen=True, slots=True)
class Link:
    a: PortId
    b: PortId  # of a switch in a Clos: node "plane<N>"
    is_up: bool = True
    latency_us: float = 0.0
    bandwidth_mbps: int = 0


@dataclass(frozen=True, slots=True)
class Region:
    """Memory of ``owner`` that ``importers`` use: by name, or as NUMA node ``numa`` of the only importer.

    ``memids`` are the ids under which the nodes know it, the owner's first. ``lease`` is the name under which the
    importer borrowed it from UBSE, "" if the scenario or a tester did. ``attached`` are the nodes that asked UBSE for
    it, ``info`` is a text that its maker gave.
    """

    name: str
    owner: str
    importers: tuple[str, ...]
    size: int  # bytes
    memids: tuple[int, ...]
    is_cacheable: bool = False
    numa: int | None = None
    lease: str = ""
    attached: tuple[str, ...] = ()
    info: str = ""

    def users(self) -> tuple[tuple[str, int], ...]:
        """Return (node, id there), the owner first."""
        return tuple(zip((self.owner, *self.importers), self.memids, strict=True))


@dataclass(frozen=True, slots=True)
class SuperNode:
    name: str
    id: int
    nodes: tuple[Node, ...]
    sharing: Sharing = Sharing.EXCLUSIVE
    eid_sharing: bool = False
    ubse_owners: bool = True
    links: tuple[Link, ...] = ()
    regions: tuple[Region, ...] = field(default=())

    def node(self, name: str) -> Node:
        """Return the node called ``name``.

        Raises:
            InvalidRequest: there is none.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise InvalidRequest(f"{self.name} has no node {name!r}, only {', '.join(n.name for n in self.nodes[:8])}")

"""What a volume is: plain values, no input or output.

Source: design section 7; CSI spec 1.12 for access modes.
"""

import hashlib
import re
import uuid
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from csi_ub.models.switching import SwitchPolicy

_ID = re.compile(r"u[bsg]-[0-9a-f]{12}-[0-9a-f]{32}")


class AccessMode(IntEnum):
    """Who may use a volume at one time. Numbers: VolumeCapability.AccessMode.Mode."""

    SINGLE_NODE_WRITER = 1
    SINGLE_NODE_READER_ONLY = 2
    MULTI_NODE_READER_ONLY = 3
    MULTI_NODE_SINGLE_WRITER = 4
    MULTI_NODE_MULTI_WRITER = 5
    SINGLE_NODE_SINGLE_WRITER = 6
    SINGLE_NODE_MULTI_WRITER = 7

    @property
    def is_single_node(self) -> bool:
        return self.name.startswith("SINGLE_NODE")

    @property
    def is_read_only(self) -> bool:
        return self.name.endswith("READER_ONLY")

    @property
    def is_single_target(self) -> bool:
        """Whether a second target path on the same node is refused (CSI spec, table below NodePublishVolume)."""
        return self in (
            AccessMode.SINGLE_NODE_WRITER,
            AccessMode.SINGLE_NODE_READER_ONLY,
            AccessMode.SINGLE_NODE_SINGLE_WRITER,
        )


class VolumeType(Enum):
    FILESYSTEM = "filesystem"
    MODEL = "model"
    MEMORY = "memory"
    BLOCK = "block"


class Consistency(Enum):
    """What a reader on one node may see of a write on another."""

    STRONG = "strong"
    EVENTUAL = "eventual"
    CLOSE_TO_OPEN = "close-to-open"


class Writers(Enum):
    """From where an eventual volume may be written: every node, or its owner alone."""

    MULTI = "multi"
    SINGLE = "single"


@dataclass(frozen=True, slots=True)
class Capability:
    """How a volume is to be used. ``mount_flags`` are the caller's secret: never print them."""

    mode: AccessMode
    is_block: bool = False
    fs_type: str = ""
    mount_flags: tuple[str, ...] = ()
    mount_group: int | None = None  # gid


@dataclass(frozen=True, slots=True)
class CapacityRange:
    """Bytes; zero is unset."""

    required: int = 0
    limit: int = 0

    def includes(self, size: int) -> bool:
        return size >= self.required and (self.limit == 0 or size <= self.limit)


@dataclass(frozen=True, slots=True)
class Spec:
    """What StorageClass parameters ask for."""

    type: VolumeType = VolumeType.FILESYSTEM
    consistency: Consistency = Consistency.STRONG
    replicas: int = 1
    pool: str | None = None  # None: the first pool of the node
    engine: str = ""  # "": the best that the node has
    max_staleness_s: float = 5.0  # seconds; the promise of an eventual volume
    switch_policy: SwitchPolicy = SwitchPolicy.ALL_READY  # of a model that each node has a copy of
    writers: Writers = Writers.MULTI
    namespace: str = ""  # of the claim, of type memory: whose quota it counts against


@dataclass(frozen=True, slots=True)
class Source:
    """What a volume was made from: the id of a snapshot or of a volume."""

    id: str
    is_snapshot: bool

    def __str__(self) -> str:
        return f"{'snapshot' if self.is_snapshot else 'volume'} {self.id}"


@dataclass(frozen=True, slots=True)
class Lease:
    """Shared memory that a volume has for itself: a region by the name that all nodes have for it.

    ``zeroed`` bytes of it hold nothing of whoever had it before.
    """

    region: str
    zeroed: int = 0


@dataclass(frozen=True, slots=True)
class Volume:
    """The record of a volume.

    ``size`` is what was asked for, in bytes (zero: nothing); ``owner`` the node whose pool holds the bytes;
    ``created`` in seconds since 1970; ``engine`` is how its bytes reach the nodes.
    """

    id: str
    name: str
    owner: str
    pool: str
    spec: Spec
    size: int = 0
    modes: frozenset[AccessMode] = field(default_factory=frozenset)
    source: Source | None = None
    created: int = 0
    engine: str = "bind"
    port: int = 0  # where the owner serves it; 0 if nothing listens
    sites: tuple["Site", ...] = ()  # other nodes that have all its bytes too, in an order that never changes
    fenced: tuple[str, ...] = ()  # nodes that must not reach it, although they may not have let go of it
    is_inline: bool = False  # comes and goes with one pod
    publications: tuple["Publication", ...] = ()  # nodes that the cluster lets use it; see csi_ub.attaching
    lease: Lease | None = None  # what it consists of, if that is memory of ours to give

    @property
    def is_sown(self) -> bool:
        """Whether its content comes to several nodes from a seed, instead of lying in its share from the start."""
        return self.spec.replicas > 1 and (self.source is not None or self.is_block)

    @property
    def is_block(self) -> bool:
        return self.spec.type is VolumeType.BLOCK

    @property
    def quota(self) -> int:
        """The bytes that its pool holds it to; 0 if it cannot outgrow its size."""
        return 0 if self.is_block else self.size


@dataclass(frozen=True, slots=True)
class Site:
    """A node that serves all bytes of a volume, and the port it does that at."""

    node: str
    port: int


@dataclass(frozen=True, slots=True)
class Replica:
    """The record of the bytes that this node keeps of another node's volume, which is the ``name`` too.

    ``sites`` are all nodes that have them, the owner of the volume first; empty until all are known.
    """

    id: str
    name: str
    owner: str
    pool: str
    size: int = 0
    port: int = 0
    sites: tuple[Site, ...] = ()
    fenced: tuple[str, ...] = ()
    created: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The record of a snapshot: ``size`` bytes of ``volume`` as they were at ``created``."""

    id: str
    name: str
    owner: str
    pool: str
    volume: str
    size: int = 0
    created: int = 0
    group: str = ""  # the id of the group that it was taken in, and goes with


@dataclass(frozen=True, slots=True)
class Group:
    """The record of snapshots that were taken together: they show their volumes at one moment."""

    id: str
    name: str
    owner: str
    pool: str
    members: tuple[Snapshot, ...]
    created: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """How a node uses a volume, as far as it matters to others."""

    mode: AccessMode
    writes: bool

    @property
    def is_exclusive(self) -> bool:
        """Whether no other node may do the same."""
        return self.mode.is_single_node or (self.writes and self.mode is AccessMode.MULTI_NODE_SINGLE_WRITER)

    def collides(self, other: "Claim") -> bool:
        """Whether two nodes cannot use a volume so at one time."""
        if self.mode.is_single_node or other.mode.is_single_node:
            return True
        return self.writes and other.writes and (self.is_exclusive or other.is_exclusive)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A node that uses a volume, as the volume's owner notes it. ``boot`` tells one life of the node from the next.

    ``writes``: some pod there may; with MULTI_NODE_SINGLE_WRITER that is so from its first publication to write on.
    """

    node: str
    mode: AccessMode
    boot: str
    writes: bool = True

    @property
    def claim(self) -> Claim:
        return Claim(self.mode, self.writes and not self.mode.is_read_only)

    @property
    def is_exclusive(self) -> bool:
        return self.claim.is_exclusive


@dataclass(frozen=True, slots=True)
class Publication:
    """A node that the cluster lets use a volume."""

    node: str
    mode: AccessMode
    readonly: bool = False

    @property
    def claim(self) -> Claim:
        return Claim(self.mode, not self.readonly and not self.mode.is_read_only)


def owner_tag(node: str) -> str:
    """Return the part of an id that names its owner: any node can tell whose a volume is from the id alone."""
    return hashlib.sha256(node.encode()).hexdigest()[:12]


def new_id(prefix: str, owner: str) -> str:
    """Return an id that nothing has."""
    return f"{prefix}-{owner_tag(owner)}-{uuid.uuid4().hex}"


def replica_id(volume_id: str) -> str:
    """Return the id of a volume's replica on a node: it has at most one there."""
    return f"ur-{volume_id.partition('-')[2]}"


def is_own_id(text: str) -> bool:
    """Whether ``text`` has the form of the ids we hand out; anything else names nothing of ours."""
    return _ID.fullmatch(text) is not None


def is_owned_by(id_: str, node: str) -> bool:
    """Whether ``id_``, which has the form of our ids, was handed out by ``node``."""
    return id_.split("-")[1] == owner_tag(node)

"""The configuration file of the driver (YAML, strict). Keys: design section 7."""

import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal

from ubhost import quantity
from ubhost.address import host_and_port
from ubhost.errors import InvalidRequest
from ubhost.roots import Roots

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DAX = re.compile(r"dax[0-9]+\.[0-9]+")
_LVM_NAME = r"(?!\.{1,2}(?:/|$))[a-zA-Z0-9+_.][a-zA-Z0-9+_.-]{0,63}"
_THIN_POOL = re.compile(f"{_LVM_NAME}/{_LVM_NAME}")


class PoolType(Enum):
    """What the space of a pool lies on, and with it what the pool can do."""

    DIR = "dir"
    BTRFS = "btrfs"
    XFS = "xfs"
    LVM = "lvm"


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Space for volumes: the directory ``path``, which must exist unless it is the default pool."""

    name: str
    path: str
    type: PoolType = PoolType.DIR
    thin_pool: str | None = None
    """The thin pool (``GROUP/POOL``) that volumes of a pool of type ``lvm`` are made of."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"pool name {self.name!r} is not a DNS label")
        if not Path(self.path).is_absolute():
            raise ValueError(f"path {self.path!r} of pool {self.name!r} is not absolute")
        if (self.type is PoolType.LVM) is not (self.thin_pool is not None):
            raise ValueError(f"thin_pool of pool {self.name!r} is for type lvm, which needs it")
        if self.thin_pool is not None and not _THIN_POOL.fullmatch(self.thin_pool):
            raise ValueError(f"thin_pool {self.thin_pool!r} of pool {self.name!r} is not GROUP/POOL, as lvs writes it")


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node of the super-node, and where its data services listen."""

    node: str
    address: str


@dataclass(frozen=True, slots=True)
class DaxRegion:
    """Memory that nodes share, each by a DAX device of its own. The same on every node."""

    name: str
    """Name of memory that nodes share, a DNS label; the same list on every node."""
    owner: str
    """The node whose driver gives it to volumes; one of ``devices``."""
    devices: dict[str, str]
    """What each node that shares it calls its device (``node0: dax0.0``). The whole device is one volume."""
    coherent: bool = False
    """Whether the hardware keeps the caches of all these nodes alike, as memory of consistency strong needs."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name {self.name!r} of shared memory is not a DNS label")
        if self.owner not in self.devices:
            raise ValueError(f"owner {self.owner!r} of shared memory {self.name!r} has no device of it")
        for node, device in self.devices.items():
            if not _DAX.fullmatch(device):
                raise ValueError(f"{device!r}, shared memory {self.name!r} on node {node!r}, is not named like dax0.0")


@dataclass(frozen=True, slots=True)
class Config:
    """Everything a driver may be told. Two pools of one name, or two peers of one node, are refused.

    ``supernode`` is the name of the super-node, for the scheduler.
    """

    pools: tuple[PoolConfig, ...] = ()
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    peers: tuple[Peer, ...] = ()
    peer_port: int = 24099
    """Where the drivers of the super-node answer one another, on the address that ``peers`` gives their node."""
    peer_key_file: str | None = None
    """File with a key of at least 32 bytes that all drivers of the super-node have. Peers prove themselves with it, and
    each volume gets a password for each node; without it nodes are trusted by their address."""
    fencing: bool = False
    """Offer ControllerPublishVolume: the cluster says who may use a volume, and takes it from a node that is lost."""
    inline_limit_bytes: int = 1 << 30
    """Size of the largest volume that a pod may bring in its own manifest, and of one that names no size."""
    supernode: str = "default"
    metrics_address: str | None = None
    """Address (HOST:PORT) on which Prometheus metrics, /healthz and /readyz are served; nowhere if not given."""

    memory_quota: dict[str, str] = field(default_factory=dict)
    """Shared memory (``8GiB``) that the claims of a namespace may have together; ``*`` is every other namespace."""
    dax: tuple[DaxRegion, ...] = ()

    def __post_init__(self) -> None:
        for namespace, size in self.memory_quota.items():
            try:
                quantity.size(size)
            except InvalidRequest as error:
                raise ValueError(f"memory_quota.{namespace}: {error}") from error
        if self.metrics_address is not None:
            host_and_port(self.metrics_address)
        if self.inline_limit_bytes <= 0:
            raise ValueError(f"inline_limit_bytes {self.inline_limit_bytes} is not a size")
        if not 0 < self.peer_port < 65536:
            raise ValueError(f"peer_port {self.peer_port} is not a port")
        _refuse_doubles("pool", [pool.name for pool in self.pools])
        _refuse_doubles("peer", [peer.node for peer in self.peers])
        _refuse_doubles("shared memory", [region.name for region in self.dax])
        devices = [f"{device} of node {node}" for region in self.dax for node, device in region.devices.items()]
        _refuse_doubles("DAX device", devices)


def default_pool(roots: Roots) -> PoolConfig:
    """Return the pool of a driver that was told of none."""
    return PoolConfig("default", str((roots.state / "pools" / "default").absolute()))


def _refuse_doubles(what: str, names: list[str]) -> None:
    doubles = sorted({name for name in names if names.count(name) > 1})
    if doubles:
        raise ValueError(f"{what} {', '.join(doubles)} is given twice")

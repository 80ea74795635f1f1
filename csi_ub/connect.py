"""The parts of one node, put together from its configuration; nothing is made or started here."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from csi_ub.config import Config, default_pool
from csi_ub.engines import Engines
from csi_ub.engines.base import Engine
from csi_ub.engines.bind import BindEngine
from csi_ub.engines.bricks import Bricks
from csi_ub.engines.clients import Clients, Healers
from csi_ub.engines.daemonfiles import Files
from csi_ub.engines.dax import DaxEngine
from csi_ub.engines.exports import Exports
from csi_ub.engines.gluster import GlusterEngine
from csi_ub.engines.nfs import NfsEngine
from csi_ub.engines.nfsmounts import NfsMounts
from csi_ub.engines.replication import Replication
from csi_ub.engines.shm import ShmEngine
from csi_ub.engines.syncthing import SyncthingEngine
from csi_ub.noderecord import Debts
from csi_ub.peers.channel import Peers
from csi_ub.peers.credentials import Key
from csi_ub.pool import Pool
from csi_ub.pools import space
from csi_ub.replicas import Replicas
from csi_ub.syncthing.daemon import Daemon
from csi_ub.syncthing.keeper import Keeper
from csi_ub.volumes import Volumes
from ubhost import quantity, statefile
from ubhost.config import convert
from ubhost.errors import HostFault, InvalidRequest, NotFound
from ubhost.roots import Roots
from ubhost.ubse.client import Ubse

_REMEMBERED = "csi.json"


def connect(node_id: str, config: Config, roots: Roots) -> Volumes:
    """Return the volumes of a node.

    Raises:
        HostFault: the key of the peers cannot be read.
        InvalidRequest: it is not what it must be.
    """
    pools, peers = _pools(config, roots), _peers(node_id, config)
    others = tuple(peer.node for peer in config.peers)
    return Volumes(node_id, pools, _engines(peers, pools, roots, config), others, config.supernode, peers)


def remembered(roots: Roots) -> Volumes:
    """Return the volumes of the driver that was started last on this host, for the command line.

    Raises:
        NotFound: none was started since the last boot.
        HostFault: what it wrote down makes no sense any more.
    """
    path = roots.run / _REMEMBERED
    content = statefile.read(path, 1)
    if content is None:
        raise NotFound(f"no ub-csi was started on this host: {path} is missing")
    try:
        known = convert(content, _Remembered, where=str(path))
    except InvalidRequest as error:
        raise HostFault(f"{error}; start ub-csi, which writes it") from error
    return connect(known.node, known.config, roots)


@dataclass(frozen=True, slots=True)
class _Remembered:
    node: str
    config: Config


def remember(node_id: str, config: Config, roots: Roots) -> None:
    """Write down what ``remembered`` reads."""
    roots.run.mkdir(parents=True, exist_ok=True, mode=0o755)
    statefile.write(roots.run / _REMEMBERED, 1, {"node": node_id, "config": msgspec.to_builtins(config)})


def _peers(node_id: str, config: Config) -> Peers:
    hosts = {peer.node: host for peer in config.peers if (host := _host(peer.address))}
    own = hosts.pop(node_id, None)
    return Peers(node_id, own, hosts, Key.load(config.peer_key_file), config.peer_port)


def _engines(peers: Peers, pools: tuple[Pool, ...], roots: Roots, config: Config) -> Engines:
    """Return the engines of a node. Those that span machines need to know where the other machines are."""
    run, state, dev = roots.run.absolute(), roots.state.absolute(), roots.dev.absolute()
    quotas = {namespace: quantity.size(size) for namespace, size in config.memory_quota.items()}
    files = Files(run / "gluster")
    daemon = Daemon(state / "syncthing", run / "syncthing", peers.address)
    bricks = Bricks(peers.node, peers.address, peers.hosts, files, peers.key)
    engines: tuple[Engine, ...] = (
        GlusterEngine(
            peers.node,
            Clients(peers.node, files, peers.key),
            Replicas(pools, bricks, Healers(peers.node, files, peers.key)),
            Replication(peers, Debts(state / "owed-replicas")),
        ),
        SyncthingEngine(peers.node, daemon, Keeper(peers.node, daemon, peers.hosts, state / "replicas"), peers),
        NfsEngine(pools, Exports(), NfsMounts(run / "nfs"), peers),
        ShmEngine(dev, run / "memory", quotas, Ubse(roots.ubse_socket.absolute())),
        DaxEngine(dev, run / "memory", quotas, roots.sys.absolute(), config.dax, pools, peers),
        BindEngine(),
    )
    return Engines({engine.name: engine for engine in engines}, has_peers=bool(peers.hosts))


def _host(address: str) -> str | None:
    """Return the host of ``host``, ``host:port`` or ``[v6]:port``; ``None`` for a socket of this machine."""
    if address.startswith(("unix:", "/")):
        return None
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


def _pools(config: Config, roots: Roots) -> tuple[Pool, ...]:
    wanted = config.pools
    if not wanted:
        default = default_pool(roots)
        Path(default.path).mkdir(parents=True, exist_ok=True, mode=0o700)
        wanted = (default,)
    return tuple(Pool(each.name, Path(each.path), space(each.type, each.thin_pool)) for each in wanted)

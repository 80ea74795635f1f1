"""Wires the services of one driver process."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

import grpc
import msgspec
from ubproto.csi.v1 import csi_pb2_grpc

from csi_ub.config import Config, default_pool
from csi_ub.controller import Controller
from csi_ub.engines import Engines
from csi_ub.engines.base import Engine
from csi_ub.engines.bind import BindEngine
from csi_ub.engines.gluster import GlusterEngine
from csi_ub.engines.syncthing import SyncthingEngine
from csi_ub.errors import Observe
from csi_ub.identity import Identity
from csi_ub.node import Node
from csi_ub.noderecord import Debts
from csi_ub.nodevolumes import NodeVolumes
from csi_ub.pool import Pool
from csi_ub.pools import space
from csi_ub.syncthing.daemon import Daemon
from csi_ub.syncthing.keeper import Keeper
from csi_ub.volumes import Volumes
from ubhost import statefile
from ubhost.config import convert
from ubhost.errors import Busy, InvalidRequest, NotFound, UbError
from ubhost.roots import Roots

log = logging.getLogger(__name__)

_SUPERVISE_S = 5.0
_REMEMBERED = "csi.json"
_LONGEST_NODE_ID = 256  # bytes, CSI spec "Size Limits"


class Mode(Enum):
    """Which services a process offers; Identity is always there."""

    NODE = "node"
    CONTROLLER = "controller"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Driver:
    """What adds each service to a server, and who wants to be told of each call."""

    services: list[Callable[[grpc.Server], None]]
    observe: Observe


def prepare(mode: Mode, node_id: str, config: Config, roots: Roots) -> Driver:
    """Open the pools, and make the services of ``mode``.

    Raises:
        InvalidRequest: the node id or a pool cannot be.
        HostFault: a pool or the state folder cannot be used.
    """
    if not 0 < len(node_id.encode()) <= _LONGEST_NODE_ID:
        raise InvalidRequest(f"node id {node_id!r} is not of 1 to {_LONGEST_NODE_ID} bytes")
    volumes = connect(node_id, config, roots)
    for pool in volumes.pools:
        pool.open()
    _remember(node_id, config, roots)
    _serve(volumes)

    def check() -> None:
        for pool in volumes.pools:
            pool.check()

    # The generated servicers answer UNIMPLEMENTED for what a service does not offer; their stubs call that abstract.
    add: list[Callable[[grpc.Server], None]] = [
        partial(csi_pb2_grpc.add_IdentityServicer_to_server, Identity(check)),
    ]
    if mode is not Mode.NODE:
        controller = Controller(volumes)  # type: ignore[abstract]
        add.append(partial(csi_pb2_grpc.add_ControllerServicer_to_server, controller))
    if mode is not Mode.CONTROLLER:
        node = NodeVolumes(volumes, roots.run.absolute() / "volumes", Debts(roots.state.absolute() / "attached"))
        node.open()
        node.settle()
        add.append(partial(csi_pb2_grpc.add_NodeServicer_to_server, Node(node)))
    return Driver(add, _observer(config, volumes, roots, check))


def _observer(config: Config, volumes: Volumes, roots: Roots, check: Callable[[], None]) -> Observe:
    """Serve metrics if they are wanted; return who counts calls."""
    if config.metrics_address is None:
        return lambda *_: None
    from csi_ub import metrics  # only who wants them pays for their library

    calls = metrics.Calls()
    metrics.serve(config.metrics_address, volumes, roots.state.absolute() / "replicas", calls, check)
    return calls


def connect(node_id: str, config: Config, roots: Roots) -> Volumes:
    """Return the volumes of a node; nothing is made or started."""
    peers = {peer.node: peer.address for peer in config.peers}
    return Volumes(node_id, _pools(config, roots), _engines(node_id, peers, roots), tuple(peers), config.supernode)


def remembered(roots: Roots) -> Volumes:
    """Return the volumes of the driver that was started last on this host, for the command line.

    Raises:
        NotFound: none was started since the last boot.
    """
    content = statefile.read(roots.run / _REMEMBERED, 1)
    if content is None:
        raise NotFound(f"no ub-csi was started on this host: {roots.run / _REMEMBERED} is missing")
    return connect(content["node"], convert(content["config"], Config, where=_REMEMBERED), roots)


def _remember(node_id: str, config: Config, roots: Roots) -> None:
    roots.run.mkdir(parents=True, exist_ok=True, mode=0o755)
    statefile.write(roots.run / _REMEMBERED, 1, {"node": node_id, "config": msgspec.to_builtins(config)})


def _engines(node_id: str, peers: dict[str, str], roots: Roots) -> Engines:
    """Return the engines of this node. Those that span machines need to know where the other machines are."""
    hosts = {node: host for node, address in peers.items() if (host := _host(address))}
    own = hosts.pop(node_id, None)
    run, state = roots.run.absolute(), roots.state.absolute()
    daemon = Daemon(state / "syncthing", run / "syncthing", own)
    engines: tuple[Engine, ...] = (
        GlusterEngine(node_id, own, hosts, run / "gluster"),
        SyncthingEngine(node_id, daemon, Keeper(node_id, daemon, hosts, state / "replicas")),
        BindEngine(),
    )
    return Engines({engine.name: engine for engine in engines}, has_peers=bool(hosts))


def _host(address: str) -> str | None:
    """Return the host of ``host``, ``host:port`` or ``[v6]:port``; ``None`` for a socket of this machine."""
    if address.startswith(("unix:", "/")):
        return None
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


def _serve(volumes: Volumes) -> None:
    """Make the volumes of this node reachable again, after a reboot; then see that they stay so."""
    for engine in volumes.engines.known.values():
        try:
            engine.resume()
        except UbError as error:
            log.warning("not resumed", extra={"engine": engine.name, "error": str(error)})
    _look_after(volumes)
    if volumes.engines.has_peers:
        threading.Thread(target=_look_after_for_ever, args=(volumes,), name="supervisor", daemon=True).start()


def _look_after_for_ever(volumes: Volumes) -> None:
    while True:
        time.sleep(_SUPERVISE_S)
        _look_after(volumes)


def _look_after(volumes: Volumes) -> None:
    """Start the data daemons that died. A volume that a call is working on is left to that call."""
    for pool in volumes.pools:
        for volume in pool.volumes.all():
            try:
                with pool.volumes.lock(volume.id, wait_s=0):
                    if pool.volumes.find(volume.id) == volume:
                        volumes.engines.named(volume.engine).look_after(volume, pool)
            except Busy:
                continue
            except UbError as error:
                log.warning("not reachable", extra={"volume_id": volume.id, "error": str(error)})


def _pools(config: Config, roots: Roots) -> tuple[Pool, ...]:
    wanted = config.pools
    if not wanted:
        default = default_pool(roots)
        Path(default.path).mkdir(parents=True, exist_ok=True, mode=0o700)
        wanted = (default,)
    return tuple(Pool(each.name, Path(each.path), space(each.type)) for each in wanted)

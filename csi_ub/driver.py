"""Wires the services of one driver process."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

import grpc
from ubproto.csi.v1 import csi_pb2_grpc

from csi_ub import forward, supervisor
from csi_ub.config import Config
from csi_ub.connect import connect, remember
from csi_ub.controller import Controller
from csi_ub.errors import Observe
from csi_ub.groupcontroller import GroupController
from csi_ub.identity import Identity
from csi_ub.node import Node
from csi_ub.noderecord import Debts
from csi_ub.nodevolumes import NodeVolumes
from csi_ub.peers.channel import Peers
from csi_ub.peers.server import PeerServer
from csi_ub.volumes import Volumes
from ubhost.errors import InvalidRequest
from ubhost.roots import Roots

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
    peers: Peers


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
    remember(node_id, config, roots)
    groups = GroupController(volumes)
    is_apart = mode is Mode.CONTROLLER and bool(volumes.peers.hosts) and volumes.peers.address is None
    controller = Controller(volumes, has_fencing=config.fencing, is_apart=is_apart)
    volumes.offer()
    volumes.peers.offer(forward.VERB, forward.answer(controller, groups))
    # A controller beside the driver of a node has no address of its own among the peers, and nothing to be asked for. A
    # driver whose node is the only peer is asked by it, too.
    if (volumes.peers.hosts or volumes.peers.address) and not is_apart:
        PeerServer(volumes.peers).start()
    supervisor.serve(volumes)

    def check() -> None:
        for pool in volumes.pools:
            pool.check()

    # The generated servicers answer UNIMPLEMENTED for what a service does not offer; their stubs call that abstract.
    add: list[Callable[[grpc.Server], None]] = [
        partial(csi_pb2_grpc.add_IdentityServicer_to_server, Identity(check)),
    ]
    if mode is not Mode.NODE:
        add.append(partial(csi_pb2_grpc.add_ControllerServicer_to_server, controller))
        add.append(partial(csi_pb2_grpc.add_GroupControllerServicer_to_server, groups))
    if mode is not Mode.CONTROLLER:
        node = NodeVolumes(volumes, roots.run.absolute() / "volumes", Debts(roots.state.absolute() / "attached"))
        node.open()
        node.settle()
        add.append(
            partial(
                csi_pb2_grpc.add_NodeServicer_to_server,
                Node(node, has_fencing=config.fencing, inline_limit=config.inline_limit_bytes),
            )
        )
    return Driver(add, _observer(config, volumes, roots, check), volumes.peers)


def _observer(config: Config, volumes: Volumes, roots: Roots, check: Callable[[], None]) -> Observe:
    """Serve metrics if they are wanted; return who counts calls."""
    if config.metrics_address is None:
        return lambda *_: None
    from csi_ub import metrics  # only who wants them pays for their library

    calls = metrics.Calls()
    metrics.serve(config.metrics_address, volumes, roots.state.absolute() / "replicas", calls, check)
    return calls

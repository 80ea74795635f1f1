"""Wires the services of one driver process."""

from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path

import grpc
from ubproto.csi.v1 import csi_pb2_grpc

from csi_ub.config import Config, default_pool
from csi_ub.controller import Controller
from csi_ub.engines.bind import BindEngine
from csi_ub.identity import Identity
from csi_ub.node import Node
from csi_ub.nodevolumes import NodeVolumes
from csi_ub.pool import Pool
from csi_ub.pools import space
from csi_ub.volumes import Volumes
from ubhost.errors import InvalidRequest
from ubhost.roots import Roots

_LONGEST_NODE_ID = 256  # bytes, CSI spec "Size Limits"


class Mode(Enum):
    """Which services a process offers; Identity is always there."""

    NODE = "node"
    CONTROLLER = "controller"
    ALL = "all"


def services(mode: Mode, node_id: str, config: Config, roots: Roots) -> list[Callable[[grpc.Server], None]]:
    """Open the pools; return what adds each service of ``mode`` to a server.

    Raises:
        InvalidRequest: the node id or a pool cannot be.
        HostFault: a pool or the state folder cannot be used.
    """
    if not 0 < len(node_id.encode()) <= _LONGEST_NODE_ID:
        raise InvalidRequest(f"node id {node_id!r} is not of 1 to {_LONGEST_NODE_ID} bytes")
    volumes = Volumes(node_id, _pools(config, roots), tuple(peer.node for peer in config.peers), config.supernode)
    engine = BindEngine()

    def check() -> None:
        for pool in volumes.pools:
            pool.check()

    # The generated servicers answer UNIMPLEMENTED for what a service does not offer; their stubs call that abstract.
    add: list[Callable[[grpc.Server], None]] = [
        partial(csi_pb2_grpc.add_IdentityServicer_to_server, Identity(check)),
    ]
    if mode is not Mode.NODE:
        controller = Controller(volumes, engine)  # type: ignore[abstract]
        add.append(partial(csi_pb2_grpc.add_ControllerServicer_to_server, controller))
    if mode is not Mode.CONTROLLER:
        node = NodeVolumes(volumes, engine, roots.run.absolute() / "volumes")
        node.open()
        add.append(partial(csi_pb2_grpc.add_NodeServicer_to_server, Node(node)))
    return add


def _pools(config: Config, roots: Roots) -> tuple[Pool, ...]:
    wanted = config.pools
    if not wanted:
        default = default_pool(roots)
        Path(default.path).mkdir(parents=True, exist_ok=True, mode=0o700)
        wanted = (default,)
    pools = tuple(Pool(each.name, Path(each.path), space(each.type)) for each in wanted)
    for pool in pools:
        pool.open()
    return pools

"""Wires the services of one driver process."""

from collections.abc import Callable
from enum import Enum
from functools import partial

import grpc
from ubproto.csi.v1 import csi_pb2_grpc

from csi_ub.config import Config
from csi_ub.identity import Identity
from ubhost.errors import InvalidRequest
from ubhost.roots import Roots

_LONGEST_NODE_ID = 256  # bytes, CSI spec "Size Limits"


class Mode(Enum):
    """Which services a process offers; Identity is always there."""

    NODE = "node"
    CONTROLLER = "controller"
    ALL = "all"


def services(mode: Mode, node_id: str, config: Config, roots: Roots) -> list[Callable[[grpc.Server], None]]:
    """Return what adds each service of ``mode`` to a server.

    Raises:
        InvalidRequest: the node id or a pool cannot be.
    """
    if not 0 < len(node_id.encode()) <= _LONGEST_NODE_ID:
        raise InvalidRequest(f"node id {node_id!r} is not of 1 to {_LONGEST_NODE_ID} bytes")
    return [partial(csi_pb2_grpc.add_IdentityServicer_to_server, Identity(lambda: None))]

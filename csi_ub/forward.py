"""Controller calls about a volume or a snapshot of another node go to the driver of that node.

So a cluster may talk to any one controller. The owner is read from the id alone, and decides alone: this is a way, not
a second opinion. Without an address of the owner the call is answered here, and refused with the owner's name.
"""

import base64
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from ubproto.csi.v1 import csi_pb2

from csi_ub.model import is_own_id, is_owned_by
from csi_ub.peers.channel import Content, Peers
from ubhost.errors import InvalidRequest

VERB = "controller"
_METHODS = {
    method.name: method
    for service in ("Controller", "GroupController")
    for method in csi_pb2.DESCRIPTOR.services_by_name[service].methods
}
_FORWARDED = frozenset(
    {
        "CreateVolumeGroupSnapshot",
        "DeleteVolumeGroupSnapshot",
        "GetVolumeGroupSnapshot",
        "DeleteVolume",
        "ControllerPublishVolume",
        "ControllerUnpublishVolume",
        "ValidateVolumeCapabilities",
        "ControllerGetVolume",
        "ControllerExpandVolume",
        "ControllerModifyVolume",
        "CreateSnapshot",
        "DeleteSnapshot",
        "ListSnapshots",
        "GetSnapshot",
    }
)
_NAMES_OWNER = ("volume_id", "source_volume_id", "snapshot_id", "group_snapshot_id")
_ASK_S = 12.0  # the callers of CSI give up after 15


class ToOwner(grpc.ServerInterceptor):
    """Stands before the Controller service of a node; goes inside of ``ReasonToStatus``."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None]",
        details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        handler = continuation(details)
        method = details.method.rpartition("/")[2]
        if handler is None or handler.unary_unary is None or method not in _FORWARDED:
            return handler
        here = handler.unary_unary

        def call(request: Message, context: grpc.ServicerContext) -> Message:
            owner = _owner(request, self._peers)
            return self._ask(owner, method, request) if owner else here(request, context)

        return grpc.unary_unary_rpc_method_handler(call, handler.request_deserializer, handler.response_serializer)

    def _ask(self, owner: str, method: str, request: Message) -> Message:
        content = {"method": method, "request": _text(request)}
        answer = self._peers.ask(owner, VERB, content, _ASK_S)
        return _message(_METHODS[method].output_type, answer)


def answer(*services: Any) -> Callable[[Content], Content]:
    """Return what answers the calls that other nodes hand on to us: ``services``, whoever they think is the owner."""

    def handle(content: Content) -> Content:
        method = content.get("method")
        if method not in _FORWARDED:
            raise InvalidRequest(f"{method!r} is not handed from driver to driver")
        request = _message(_METHODS[method].input_type, content)
        service = next(each for each in services if hasattr(each, method))
        return {"response": _text(getattr(service, method)(request, None))}

    return handle


def _owner(request: Message, peers: Peers) -> str | None:
    # All volumes of a group have one owner, or it is refused there.
    named = (*(getattr(request, field, "") for field in _NAMES_OWNER), *getattr(request, "source_volume_ids", ())[:1])
    for id_ in named:
        if id_ and is_own_id(id_) and not is_owned_by(id_, peers.node):
            return next((node for node in peers.hosts if is_owned_by(id_, node)), None)
    return None


def _text(message: Message) -> str:
    return base64.b64encode(message.SerializeToString()).decode("ascii")


def _message(kind: Any, content: Mapping[str, Any]) -> Message:
    text = content.get("request") or content.get("response") or ""
    message: Message = GetMessageClass(kind)()
    try:
        message.ParseFromString(base64.b64decode(text, validate=True))
    except (DecodeError, TypeError, ValueError) as error:
        raise InvalidRequest(f"a call between drivers cannot be read: {error}") from error
    return message

"""The one place where reasons become gRPC status codes for kubelet, which shows code and message to the user."""

from __future__ import annotations  # typeshed's RpcMethodHandler is generic, grpcio's is not

import logging
from collections.abc import Callable
from typing import Any, NoReturn

import grpc

from ubhost import errors

STATUS: dict[type[errors.UbError], grpc.StatusCode] = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.Conflict: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Busy: grpc.StatusCode.UNAVAILABLE,
    errors.Exhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    errors.HostFault: grpc.StatusCode.INTERNAL,
}

log = logging.getLogger(__name__)


class ReasonToStatus(grpc.ServerInterceptor):
    """Let handlers of single answers raise ``UbError``; answer kubelet with the matching status."""

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        call = handler.unary_unary
        method = handler_call_details.method

        def guarded(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                return call(request, context)
            except errors.UbError as error:
                log.warning("kubelet's call was refused", extra={"method": method, "why": str(error)})
                _abort(context, errors.code_for(error, STATUS), str(error))

        return grpc.unary_unary_rpc_method_handler(guarded, handler.request_deserializer, handler.response_serializer)


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, message: str) -> NoReturn:
    context.abort(code, message)
    raise AssertionError("abort returned")

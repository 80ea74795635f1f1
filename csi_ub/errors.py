"""The one place where reasons become gRPC status codes (CSI spec 1.12, "Error Scheme")."""

from __future__ import annotations  # typeshed's RpcMethodHandler is generic, grpcio's is not

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc

from csi_ub import limits, redact
from csi_ub.reasons import InUse, NotStaged, OutOfRange, StaleToken, Unreachable
from ubhost import errors
from ubhost.log import ids

STATUS: dict[type[errors.UbError], grpc.StatusCode] = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.Conflict: grpc.StatusCode.ALREADY_EXISTS,
    errors.Busy: grpc.StatusCode.ABORTED,
    errors.Exhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unsupported: grpc.StatusCode.FAILED_PRECONDITION,
    errors.HostFault: grpc.StatusCode.INTERNAL,
    InUse: grpc.StatusCode.FAILED_PRECONDITION,
    NotStaged: grpc.StatusCode.FAILED_PRECONDITION,
    OutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    StaleToken: grpc.StatusCode.ABORTED,
    Unreachable: grpc.StatusCode.UNAVAILABLE,
}

_REASON: dict[grpc.StatusCode, type[errors.UbError]] = {
    **{code: kind for kind, code in reversed(STATUS.items())},
    grpc.StatusCode.FAILED_PRECONDITION: InUse,
}

Observe = Callable[[str, str, float], None]

log = logging.getLogger(__name__)


def reason(code: grpc.StatusCode, message: str) -> errors.UbError:
    """Return what another driver raised, from the status that it answered with."""
    return _REASON.get(code, errors.HostFault)(message)


class ReasonToStatus(grpc.ServerInterceptor):
    """Let handlers raise ``UbError``; answer the client with the matching status, and log one line a request.

    Anything else that a handler raises is a bug: the client reads INTERNAL and the method, the log has the trace.
    No secret of a request reaches either. ``observe`` is told method, code and seconds of each call.
    """

    def __init__(self, observe: Observe = lambda *_: None) -> None:
        self._observe = observe

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = continuation(details)
        if handler is None or handler.request_streaming:  # CSI has no call with a stream of requests
            return handler
        method = details.method.rpartition("/")[2]
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(
                _guard_stream(method, handler.unary_stream, self._observe),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.unary_unary is None:
            return handler
        return grpc.unary_unary_rpc_method_handler(
            _guard(method, handler.unary_unary, self._observe),
            handler.request_deserializer,
            handler.response_serializer,
        )


def _guard(method: str, call: Callable[[Any, grpc.ServicerContext], Any], observe: Observe) -> Callable[..., Any]:
    def guarded(request: Any, context: grpc.ServicerContext) -> Any:
        with _answering(method, request, context, observe):
            return call(request, context)

    return guarded


def _guard_stream(
    method: str, call: Callable[[Any, grpc.ServicerContext], Iterator[Any]], observe: Observe
) -> Callable[..., Any]:
    def guarded(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        with _answering(method, request, context, observe):
            yield from call(request, context)

    return guarded


@contextmanager
def _answering(method: str, request: Any, context: grpc.ServicerContext, observe: Observe) -> Iterator[None]:
    """Turn what the body raises into a status; log the outcome and the duration of the call."""
    started = time.monotonic()
    code, message = grpc.StatusCode.OK, ""
    with ids(method=method, **_ids(request)):
        try:
            limits.check(request)
            yield
        except errors.UbError as error:
            code, message = errors.code_for(error, STATUS), redact.text(str(error), request)
        except NotImplementedError:  # what a generated servicer raises for a method it does not have
            code, message = grpc.StatusCode.UNIMPLEMENTED, f"{method} is not offered by this driver"
        except Exception as error:  # a bug: the caller must not see UNKNOWN, nor we lose the trace
            code, message = grpc.StatusCode.INTERNAL, f"{method} failed: the log of the driver has the trace"
            log.error("bug", extra={"trace": redact.trace(error, request)})
        duration_s = time.monotonic() - started
        observe(method, code.name, duration_s)
        _log(method, code, message, duration_s)
        if code is not grpc.StatusCode.OK:
            _abort(context, code, message)


def _ids(request: Any) -> dict[str, str]:
    """Return the object a request is about, for the log."""
    return {key: value for key in ("volume_id", "snapshot_id", "name") if (value := getattr(request, key, ""))}


def _log(method: str, code: grpc.StatusCode, message: str, duration_s: float) -> None:
    level = logging.INFO if code is grpc.StatusCode.OK else logging.WARNING
    if code is grpc.StatusCode.OK and method == "Probe":
        level = logging.DEBUG
    extra = {"code": code.name, "duration_ms": round(duration_s * 1000, 2)}
    log.log(level, "answered", extra={**extra, "error": message} if message else extra)


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, message: str) -> NoReturn:
    context.abort(code, message)
    raise AssertionError("abort returned")

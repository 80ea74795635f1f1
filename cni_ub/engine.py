"""The engine: one CNI call in, exit code and document out. The agent and the shim both run this.

Source: design section 4; containernetworking/cni SPEC.md 1.1.0.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from cni_ub import errors, spec
from cni_ub.attach import add
from cni_ub.check import check
from cni_ub.collect import collect
from cni_ub.detach import delete
from cni_ub.errors import BadEnvironment, HostNamespace
from cni_ub.host import Host
from cni_ub.protocol import Request, read_request
from cni_ub.status import status
from ubhost import log
from ubhost.errors import InvalidRequest, NotFound
from ubhost.kernel import netns

LOG = logging.getLogger("cni_ub")


Observer = Callable[[str, bool, float], None]


def run(
    host: Host,
    environ: Mapping[str, str],
    nonce: str,
    stdin: bytes,
    pod: int | None = None,
    observe: Observer = lambda verb, succeeded, seconds: None,
) -> tuple[int, bytes]:
    """Answer one call; never raise.

    Args:
        nonce: what tells this call from every other, so that it can be begun again after a crash.
        pod: an open descriptor of CNI_NETNS, if the caller has opened it.
        observe: is told the verb of every call that was carried out, whether it succeeded, and how long it took.

    Returns:
        The exit code, and the document for stdout, which is empty where the verb has none.
    """
    version = spec.LATEST
    try:
        request = read_request(environ, nonce, stdin)
        version = request.conf.version
        with log.ids(**_ids(request)):
            document = _timed(host, request, pod, observe)
        return 0, json.dumps(document).encode() + b"\n" if document is not None else b""
    except spec.Refused as refused:
        return 1, refused.document()
    except Exception as error:  # a runtime needs a CNI error, whatever went wrong
        return 1, _failure(error, environ.get("CNI_COMMAND", ""), version)


def _timed(host: Host, request: Request, pod: int | None, observe: Observer) -> dict[str, Any] | None:
    """Carry out a call; tell the log and the observer about it."""
    began = time.monotonic()
    outcome = "failed"
    try:
        document = _carry_out(host, request, pod)
        outcome = "done"
        return document
    except Exception as error:
        outcome = f"failed: {error}"
        raise
    finally:
        seconds = time.monotonic() - began
        level = logging.DEBUG if request.command == "STATUS" else logging.INFO
        LOG.log(level, "call", extra={"verb": request.command, "outcome": outcome, "ms": round(seconds * 1000, 1)})
        observe(request.command, outcome == "done", seconds)


def _carry_out(host: Host, request: Request, pod: int | None) -> dict[str, Any] | None:
    with ExitStack() as stack:
        match request.command:
            case "ADD":
                return add(host, request, _pod(request, pod, stack))
            case "CHECK":
                check(host, request, _pod(request, pod, stack))
            case "DEL":
                delete(host, request, _pod_if_there(request, pod, stack))
            case "GC":
                collect(host, request)
            case _:
                status(host, request)
    return None


def _pod(request: Request, given: int | None, stack: ExitStack) -> int:
    """Return a descriptor of the pod's namespace.

    Raises:
        BadEnvironment: CNI_NETNS is not a network namespace.
        HostNamespace: it is our own.
    """
    if given is None or not netns.is_netns(given):
        try:
            given = netns.open_netns(request.netns)
        except (NotFound, InvalidRequest) as error:
            raise BadEnvironment(f"CNI_NETNS: {error}") from error
        stack.callback(os.close, given)
    if netns.inode(given) == netns.own_inode():
        raise HostNamespace(f"CNI_NETNS {request.netns} is the network namespace of the host itself")
    return given


def _pod_if_there(request: Request, given: int | None, stack: ExitStack) -> int | None:
    """For DEL: anything that is not a pod's namespace is as good as none."""
    try:
        return _pod(request, given, stack) if request.netns else None
    except (BadEnvironment, HostNamespace) as error:
        LOG.info("there is no pod to detach from", extra={"error": str(error)})
        return None


def _ids(request: Request) -> dict[str, str]:
    ids = {
        "container": request.container,
        "ifname": request.ifname,
        "netns": request.netns,
        "network": request.conf.name,
        "pod": request.pod,
        "trace": request.trace,
    }
    return {key: value for key, value in ids.items() if value}


def _failure(error: Exception, command: str, version: str) -> bytes:
    code = errors.code_of(error)
    message = str(error)
    if code == errors.INTERNAL and not isinstance(error, errors.DelegateFailed):
        LOG.error("a bug", exc_info=error)
        message = f"{type(error).__name__}: {error}"
    if command == "DEL":
        message = errors.retryable(message)
    details = error.details if isinstance(error, errors.DelegateFailed) else type(error).__name__
    return spec.failure(code, message, details, version)

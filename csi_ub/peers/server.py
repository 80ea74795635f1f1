"""Answer the drivers of other nodes. Who may ask: whoever has the key, or, if there is none, the addresses of peers."""

import json
import logging
import socket
import threading
import time
import urllib.parse
from concurrent import futures
from contextlib import suppress
from typing import Any

import grpc

from csi_ub.errors import STATUS
from csi_ub.peers.channel import SERVICE, Content, Peers, Verb, target
from csi_ub.peers.credentials import Seen
from ubhost.errors import HostFault, InvalidRequest, UbError, Unsupported, code_for

_THREADS = 16
_RETRY_S = 5.0
_RESOLVE_S = 60.0

log = logging.getLogger(__name__)


class PeerServer:
    """Serves ``peers.verbs`` in threads of its own, for the life of the process."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._seen, self._lock = Seen(), threading.Lock()
        self._known: tuple[float, frozenset[str]] = (0.0, frozenset())
        # SO_REUSEPORT would let two drivers share the port, and each hear half of the calls.
        self._server = grpc.server(
            futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="peers"), options=(("grpc.so_reuseport", 0),)
        )
        handlers = {verb: self._handler(verb, answer) for verb, answer in peers.verbs.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    def start(self) -> None:
        """Listen; if another driver of this node does, wait in the background until it has gone."""
        try:
            self._listen()
        except HostFault as error:
            log.warning("peers are not answered yet", extra={"error": str(error)})
            threading.Thread(target=self._keep_trying, name="peers", daemon=True).start()

    def stop(self) -> None:
        self._server.stop(None).wait()

    def _listen(self) -> None:
        host = target(self._peers.address or "0.0.0.0", self._peers.port)  # noqa: S104 - see _refuse_stranger
        try:
            self._server.add_insecure_port(host)
        except RuntimeError as error:
            raise HostFault(f"cannot listen at {host} for other drivers: {error}") from error
        self._server.start()

    def _keep_trying(self) -> None:
        while True:
            time.sleep(_RETRY_S)
            with suppress(HostFault):
                self._listen()
                return

    def _handler(self, verb: str, answer: Verb) -> "grpc.RpcMethodHandler[bytes, bytes]":
        def handle(body: bytes, context: grpc.ServicerContext) -> bytes:
            code, message = grpc.StatusCode.INTERNAL, f"{verb} failed: the log of node {self._peers.node} has the trace"
            try:
                self._refuse_stranger(verb, body, context)
                return json.dumps(answer(_content(body))).encode()
            except UbError as error:
                code, message = code_for(error, STATUS), str(error)
                log.warning("a peer was refused", extra={"verb": verb, "code": code.name, "error": message})
            except NotImplementedError:
                code, message = grpc.StatusCode.UNIMPLEMENTED, f"not offered by node {self._peers.node}"
            except Exception:
                log.exception("bug", extra={"verb": verb})
            context.abort(code, message)
            raise AssertionError("abort returned")

        return grpc.unary_unary_rpc_method_handler(handle)

    def _refuse_stranger(self, verb: str, body: bytes, context: grpc.ServicerContext) -> None:
        if not self._peers.key:
            address = _address(context.peer())
            if address not in self._addresses():
                raise Unsupported(f"{address} is not the address of a peer of node {self._peers.node}")
            return
        proof = {key: str(value) for key, value in context.invocation_metadata()}
        moment, nonce = proof.get("ub-moment", ""), proof.get("ub-nonce", "")
        if not self._peers.key.is_signed(proof.get("ub-code", ""), verb, moment, nonce, body):
            raise Unsupported(f"the call was not made with the key of node {self._peers.node}: see peer_key_file")
        with self._lock:
            is_new = self._seen.is_new(nonce, float(moment))
        if not is_new:
            raise Unsupported("the call is too old or was heard before: are the clocks of the nodes alike?")

    def _addresses(self) -> frozenset[str]:
        """Return the addresses of our peers. They are looked up now and then: they may be names."""
        until, known = self._known
        if time.monotonic() > until:
            found = set()
            for host in (*self._peers.hosts.values(), *filter(None, [self._peers.address])):
                with suppress(OSError):
                    found |= {str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
            known = frozenset(found)
            self._known = time.monotonic() + _RESOLVE_S, known
        return known


def _content(body: bytes) -> Content:
    try:
        content: Any = json.loads(body)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise InvalidRequest("a call between drivers is a JSON object")
    return content


def _address(peer: str) -> str:
    """Return the address in gRPC's ``ipv4:10.0.0.1:4711`` or ``ipv6:%5Bfd00::1%5D:4711``."""
    host = urllib.parse.unquote(peer.partition(":")[2]).rpartition(":")[0].strip("[]")
    return host.removeprefix("::ffff:")

"""Ask the driver of another node. gRPC carries the call; its codes are those of ``csi_ub.errors``, both ways."""

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from csi_ub.errors import reason
from csi_ub.peers.credentials import Key
from csi_ub.reasons import Unreachable
from ubhost.errors import NotFound, Unsupported

SERVICE = "ub.Peers"
PORT = 24099
_ASK_S = 5.0  # three of these fit into the 15 s of the callers of CSI
_OPTIONS = (("grpc.max_reconnect_backoff_ms", 1000), ("grpc.initial_reconnect_backoff_ms", 100))

Content = dict[str, Any]
Verb = Callable[[Content], Content]


@dataclass(frozen=True, slots=True)
class Peers:
    """The other nodes: ``hosts`` are their addresses, ``address`` is our own (``None``: not told)."""

    node: str
    address: str | None = None
    hosts: Mapping[str, str] = field(default_factory=dict)
    key: Key = field(default_factory=Key)
    port: int = PORT
    verbs: dict[str, Verb] = field(default_factory=dict)
    _channels: dict[str, grpc.Channel] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def offer(self, verb: str, answer: Verb) -> None:
        """Answer ``verb`` from now on. What it raises is raised at whoever asks."""
        self.verbs[verb] = answer

    def knows(self, node: str) -> bool:
        return node == self.node or node in self.hosts

    def ask(self, node: str, verb: str, content: Content, timeout_s: float = _ASK_S) -> Content:
        """Return what ``node`` answers; our own answers are asked for without the network.

        Raises:
            Unsupported: the node is not among our peers, or does not know the verb.
            Unreachable: it does not answer.
            UbError: what it raised.
        """
        if node == self.node:
            if verb not in self.verbs:
                raise Unsupported(f"node {node} does not offer {verb}")
            return self.verbs[verb](content)
        body = json.dumps(content).encode()
        try:
            call: Any = self._channel(node).unary_unary(f"/{SERVICE}/{verb}")  # bytes in, bytes out
            answer = call(body, timeout=timeout_s, metadata=self._proof(verb, body))
        except grpc.RpcError as error:
            raise _reason(node, verb, error) from None
        found: Content = json.loads(answer)
        return found

    def _channel(self, node: str) -> grpc.Channel:
        host = self.hosts.get(node)
        if host is None:
            raise Unsupported(f"node {node} is not among the peers of node {self.node}")
        with self._lock:
            if node not in self._channels:
                self._channels[node] = grpc.insecure_channel(target(host, self.port), options=_OPTIONS)
            return self._channels[node]

    def _proof(self, verb: str, body: bytes) -> tuple[tuple[str, str], ...]:
        if not self.key:
            return ()
        moment, nonce = repr(time.time()), secrets.token_hex(16)
        return (("ub-moment", moment), ("ub-nonce", nonce), ("ub-code", self.key.sign(verb, moment, nonce, body)))


def target(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(node: str, verb: str, error: Any) -> Exception:
    code, message = error.code(), error.details() or ""
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
        return Unreachable(f"node {node} does not answer {verb}: {message[:200]}")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Unsupported(f"the driver of node {node} does not offer {verb}: it is older than this one")
    if code is grpc.StatusCode.NOT_FOUND:
        return NotFound(message)
    return reason(code, f"node {node}: {message}")

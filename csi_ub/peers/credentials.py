"""What proves that a call comes from a driver of this super-node, and what opens one volume to one node.

Both come from one key that every driver reads from a file. It never travels: a call carries a code made with it, and
a volume's password is made from it, so there is none to keep or to hand out. What is asked for and answered is not
hidden from who can listen in the network of the super-node.
"""

import hashlib
import hmac
import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

from ubhost.errors import HostFault, InvalidRequest

WINDOW_S = 300.0  # clocks of two nodes may differ by so much
_SHORTEST = 32  # bytes


@dataclass(frozen=True, slots=True)
class Key:
    """The shared key, or none: then nodes are known by their addresses alone."""

    secret: bytes = field(default=b"", repr=False)

    def __bool__(self) -> bool:
        return bool(self.secret)

    @classmethod
    def load(cls, path: str | None) -> "Key":
        """Return the key in a file; no key if there is no path.

        Raises:
            HostFault: the file cannot be read.
            InvalidRequest: others than its owner may read it, or it is too short.
        """
        if path is None:
            return cls()
        try:
            with Path(path).open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                secret = file.read(4096).strip()
        except OSError as error:
            raise HostFault(f"cannot read peer_key_file {path}: {error.strerror}") from error
        if mode & 0o077:
            raise InvalidRequest(f"peer_key_file {path} has mode {mode:04o}: make it 0400, it opens every volume")
        if len(secret) < _SHORTEST:
            raise InvalidRequest(f"peer_key_file {path} has {len(secret)} bytes, fewer than {_SHORTEST}")
        return cls(secret)

    def password(self, volume_id: str, node: str) -> str:
        """Return what opens one volume to one node."""
        return self._code(f"volume {volume_id} node {node}".encode())

    def sign(self, verb: str, moment: str, nonce: str, body: bytes) -> str:
        """Return the code of a call. It is good for one verb, one body, once, within ``WINDOW_S`` of ``moment``."""
        return self._code(b"\0".join((b"call", verb.encode(), moment.encode(), nonce.encode(), body)))

    def is_signed(self, code: str, verb: str, moment: str, nonce: str, body: bytes) -> bool:
        return hmac.compare_digest(code.encode(), self.sign(verb, moment, nonce, body).encode())

    def _code(self, text: bytes) -> str:
        return hmac.new(self.secret, text, hashlib.sha256).hexdigest()


class Seen:
    """Remembers the calls of the last ``WINDOW_S``, so that none is good twice. For use under a lock."""

    def __init__(self) -> None:
        self._nonces: dict[str, float] = {}

    def is_new(self, nonce: str, moment: float) -> bool:
        """Whether a call of ``moment`` (seconds since 1970) is timely and was not heard before; remember it."""
        now = time.time()
        self._nonces = {known: until for known, until in self._nonces.items() if until > now}
        if abs(now - moment) > WINDOW_S or nonce in self._nonces:
            return False
        self._nonces[nonce] = now + 2 * WINDOW_S
        return True

"""The talk between shim and agent, as bytes: one request and one answer on one connection of the agent's socket.

    agent -> shim   ``ub-cni 1 <inode of the agent's network namespace>\\n``, once a worker is free for this call
    shim  -> agent  lengths of the three parts, 32 bit each; environment (``KEY=VALUE``, each ended by NUL), nonce,
                    stdin; the descriptor of the pod's namespace comes with the first byte, if it could be opened
    agent -> shim   exit code and length of the document, 32 bit each; the document for stdout

Nothing is sent before the greeting, so a call that the shim gave up on is never carried out behind its back.
Numbers are in the host's byte order: both ends run on one machine. On the start-up path of every call: ``struct`` only.
"""

import struct

TYPE_CHECKING = False  # typing's own, without its import
if TYPE_CHECKING:
    from collections.abc import Mapping

REQUEST = struct.Struct("=III")
ANSWER = struct.Struct("=II")
DESCRIPTOR = struct.Struct("=i")
MAX_REQUEST = 16 << 20  # bytes; a configuration with every annotation of a pod is far below


class Malformed(ValueError):
    """The other end does not speak this protocol."""


def greeting(netns_inode: int) -> bytes:
    return b"ub-cni 1 %d\n" % netns_inode


def descriptor(fd: int) -> bytes:
    """Return the payload of an SCM_RIGHTS message with one descriptor."""
    return DESCRIPTOR.pack(fd)


def request(environ: "Mapping[bytes, bytes]", nonce: bytes, stdin: bytes) -> bytes:
    variables = b"".join(b"%s=%s\0" % item for item in environ.items())
    return REQUEST.pack(len(variables), len(nonce), len(stdin)) + variables + nonce + stdin


def parse_request(data: bytes) -> tuple[dict[bytes, bytes], bytes, bytes]:
    """Return environment, nonce and stdin.

    Raises:
        Malformed: lengths do not fit, or a variable has no value.
    """
    if len(data) < REQUEST.size:
        raise Malformed(f"request of {len(data)} bytes")
    lengths = REQUEST.unpack_from(data)
    if REQUEST.size + sum(lengths) != len(data):
        raise Malformed(f"request of {len(data)} bytes says {lengths}")
    at = REQUEST.size
    variables, nonce = data[at : at + lengths[0]], data[at + lengths[0] : at + lengths[0] + lengths[1]]
    pairs = [item.split(b"=", 1) for item in variables.split(b"\0")[:-1]]
    if any(len(pair) != 2 for pair in pairs) or variables[-1:] not in (b"", b"\0"):
        raise Malformed("a variable without a value or an end")
    return {pair[0]: pair[1] for pair in pairs}, nonce, data[at + lengths[0] + lengths[1] :]


def answer(code: int, document: bytes) -> bytes:
    return ANSWER.pack(code, len(document)) + document


def parse_answer(data: bytes) -> tuple[int, bytes]:
    """Return exit code and document.

    Raises:
        Malformed: it was cut off.
    """
    if len(data) < ANSWER.size:
        raise Malformed(f"answer of {len(data)} bytes")
    code, length = ANSWER.unpack_from(data)
    if len(data) != ANSWER.size + length:
        raise Malformed(f"answer cut off at {len(data)} bytes")
    return code, data[ANSWER.size :]

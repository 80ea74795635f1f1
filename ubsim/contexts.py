"""Open a URMA device of a simulated node, under the driver's rule: the device and the EID must be the caller's.

    with context(node.root, "bonding_dev_1", eid_index=0):    # PermissionError: of another network namespace
        ...

``/dev/uburma/*`` is 0666 and opens for everybody, on hardware as here: what is refused is a *context*, the first thing
that an application asks of the open node. The namespace that counts is the one in which the calling thread is.

Source: reference/ub.md section 3, rule 3 (kernel ubcore_alloc_ucontext).
"""

import errno
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ubhost.errors import Unsupported
from ubhost.kernel.netns import OWN
from ubsim.caller import Caller
from ubsim.ubcore import Refused, Ubcore

DOOR = "run/ubsim/uburma.sock"  # below the root of a node
MAX_REQUEST = 4096


@contextmanager
def context(root: Path, device: str, eid_index: int) -> Iterator[None]:
    """Hold a context of kernel device ``device`` on EID slot ``eid_index`` while the body runs.

    Raises:
        PermissionError: the device or the EID is not accessible from this network namespace.
        OSError: ENODEV, there is no such device; EINVAL, no device has such a slot.
        Unsupported: the node is down.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(str(root / DOOR))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise Unsupported(f"no simulated node listens at {root / DOOR}") from error
        netns = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
        try:
            asked = {"device": device, "eid_index": eid_index}
            socket.send_fds(connection, [json.dumps(asked).encode()], [netns])
        finally:
            os.close(netns)
        code, _, reason = connection.recv(MAX_REQUEST).decode().partition(" ")
        if int(code or errno.EIO):
            raise OSError(int(code or errno.EIO), reason or "the node hung up", device)
        yield


def serve(connection: socket.socket, state: Callable[[], Ubcore]) -> None:
    """Answer one request with an errno, and keep the context until the peer lets go.

    A caller is where it says that it is only if it is root: others are looked up.
    """
    caller = Caller.of(connection)
    request, descriptors, _, _ = socket.recv_fds(connection, MAX_REQUEST, 1)
    try:
        asked = json.loads(request)
        netns = os.fstat(descriptors[0]).st_ino if caller.is_root and descriptors else caller.netns()
        state().check_access(str(asked["device"]), int(asked["eid_index"]), netns)
    except Refused as refusal:
        connection.send(f"{refusal.errno} {refusal.strerror}".encode())
    except (ValueError, KeyError, TypeError):
        connection.send(f"{errno.EINVAL} not a request for a context".encode())
    else:
        connection.send(b"0 ")
        connection.recv(1)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)

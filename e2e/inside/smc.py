"""TCP over SMC-R from the command line of a guest: the kernel's own zero-copy path for stream sockets.

    python3 -m e2e.inside.smc eid NAME             add a user EID: without one, SMC-Rv2 over RoCE v2 falls back to TCP
    python3 -m e2e.inside.smc eids                 print the user EIDs of the kernel
    python3 -m e2e.inside.smc serve PORT           take one connection, print how many bytes came
    python3 -m e2e.inside.smc send HOST PORT N     send N bytes; print whether the connection fell back to TCP
    python3 -m e2e.inside.smc show                 print how each SMC socket of this namespace works, and why

Source: Linux net/smc/{smc_netlink,smc_diag}.c, net/smc/smc_clc.h, include/uapi/linux/smc.h and smc_diag.h.
"""

import ctypes
import json
import os
import re
import socket
import struct
import sys
from typing import cast

AF_SMC = 43
NETLINK_SOCK_DIAG, NETLINK_GENERIC = 4, 16
GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 16, 3, 1, 2
SMC_NETLINK_DUMP_UEID, SMC_NETLINK_ADD_UEID, SMC_NLA_EID_TABLE_ENTRY = 9, 10, 1
SMC_MAX_EID_LEN = 32
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 1, 4, 0x300
MODES = {0: "SMC-R", 1: "TCP", 2: "SMC-D"}  # smc_diag.h: diag_mode
DIAG_FALLBACK = 5
# SMC_CLC_DECL_*
REASONS = {
    0: "",
    0x03010000: "the peer has no SMC",
    0x03030000: "no SMC device",
    0x03030002: "no SMC-R device",
    0x03030008: "no user EID",
}
CHUNK = b"x" * 65536


def _message(kind: int, flags: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def _family(netlink: socket.socket) -> int:
    name = _attribute(CTRL_ATTR_FAMILY_NAME, b"SMC_GEN_NETLINK\0")
    netlink.send(_message(GENL_ID_CTRL, NLM_F_REQUEST, struct.pack("=BBH", CTRL_CMD_GETFAMILY, 1, 0) + name))
    answer, offset = netlink.recv(8192), 20
    while offset < len(answer):
        length, kind = struct.unpack_from("=HH", answer, offset)
        if kind == CTRL_ATTR_FAMILY_ID:
            return cast("int", struct.unpack_from("=H", answer, offset + 4)[0])
        offset += (length + 3) & ~3
    raise SystemExit("the kernel has no SMC_GEN_NETLINK family: modprobe smc")


def add_eid(name: str) -> None:
    """Add a user EID, 32 characters padded with blanks."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC) as netlink:
        entry = _attribute(SMC_NLA_EID_TABLE_ENTRY, name.upper().ljust(SMC_MAX_EID_LEN).encode() + b"\0")
        header = struct.pack("=BBH", SMC_NETLINK_ADD_UEID, 1, 0)
        netlink.send(_message(_family(netlink), NLM_F_REQUEST | NLM_F_ACK, header + entry))
        (error,) = struct.unpack_from("=i", netlink.recv(8192), 16)
    if error:
        raise SystemExit(f"cannot add EID {name}: {os.strerror(-error)}")


def eids() -> list[str]:
    """Return the user EIDs."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC) as netlink:
        header = struct.pack("=BBH", SMC_NETLINK_DUMP_UEID, 1, 0)
        netlink.send(_message(_family(netlink), NLM_F_REQUEST | NLM_F_DUMP, header))
        answer = netlink.recv(8192)
    return [text.decode().strip() for text in re.findall(rb"[A-Z][A-Z0-9 -]{%d}" % (SMC_MAX_EID_LEN - 1), answer)]


def _address(host: str, port: int) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, socket.htons(port), socket.inet_aton(host))


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise SystemExit(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def serve(port: int) -> None:
    """Take one connection and count what comes. Python knows no addresses of AF_SMC, so libc is asked."""
    libc = ctypes.CDLL(None, use_errno=True)
    with socket.socket(AF_SMC, socket.SOCK_STREAM, 0) as listening:
        _checked(libc.bind(listening.fileno(), _address("0.0.0.0", port), 16), "bind")
        _checked(libc.listen(listening.fileno(), 1), "listen")
        fd = _checked(libc.accept(listening.fileno(), None, None), "accept")
    received = 0
    while data := os.read(fd, len(CHUNK)):
        received += len(data)
    os.close(fd)
    print(json.dumps({"received": received}))


def send(host: str, port: int, count: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with socket.socket(AF_SMC, socket.SOCK_STREAM, 0) as connection:
        _checked(libc.connect(connection.fileno(), _address(host, port), 16), "connect")
        left = count
        while left:
            left -= os.write(connection.fileno(), CHUNK[:left])
        print(json.dumps({"mode": mode(), "sent": count}))


def mode() -> str:
    """Return how the one SMC socket of this network namespace that is connected really moves its bytes."""
    return str(connections()[0]["mode"])


def connections() -> list[dict[str, object]]:
    """Return every SMC socket of this network namespace: its mode, and the reason if it fell back to TCP."""
    request = struct.pack("=BBBB", AF_SMC, 0, 0, 1 << DIAG_FALLBACK - 1) + b"\0" * 52  # struct smc_diag_req
    found: list[dict[str, object]] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as diag:
        diag.send(_message(SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, request))
        while True:
            answer, offset = diag.recv(65536), 0
            while offset < len(answer):
                length, kind = struct.unpack_from("=IH", answer, offset)
                if kind != SOCK_DIAG_BY_FAMILY:  # the end
                    return found
                found.append(_connection(answer[offset + 16 : offset + length]))
                offset += (length + 3) & ~3


def _connection(message: bytes) -> dict[str, object]:
    state, mode = message[1], message[2]
    offset, reason = 64, 0  # struct smc_diag_msg, then attributes
    while offset < len(message):
        length, kind = struct.unpack_from("=HH", message, offset)
        if kind == DIAG_FALLBACK:
            (reason,) = struct.unpack_from("=I", message, offset + 4)
        offset += (length + 3) & ~3
    return {"state": state, "mode": MODES[mode], "reason": REASONS.get(reason, hex(reason))}


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    if verb == "eid":
        add_eid(arguments[0])
    elif verb == "serve":
        serve(int(arguments[0]))
    elif verb == "eids":
        print(json.dumps(eids()))
    elif verb == "show":
        print(json.dumps(connections()))
    else:
        send(arguments[0], int(arguments[1]), int(arguments[2]))

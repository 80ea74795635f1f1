"""A program that speaks generic netlink and knows nothing of simulators: requests in hex on stdin, answers as JSON.

Behind each request goes one that is known to be refused, so that all answers to the first are there before its own.
"""

import json
import os
import socket
import struct
import sys
from collections.abc import Iterator

FENCE = 0xFE11CE


def main() -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16) as asked:
        asked.bind((0, 0))
        asked.settimeout(60)
        port = asked.getsockname()[0]
        answers = []
        for line in sys.stdin:
            asked.send(bytes.fromhex(line))
            asked.send(struct.pack("=IHHIIBBH", 20, 0x3FF, 5, FENCE, 0, 8, 1, 0))
            answers.append(list(until_fence(asked, port)))
    json.dump(answers, sys.stdout)
    sys.stdout.flush()
    os._exit(0)


def until_fence(asked: socket.socket, port: int) -> Iterator[str]:
    while True:
        datagram = asked.recv(1 << 16)
        while datagram:
            length, _, _, sequence, to = struct.unpack_from("=IHHII", datagram)
            if sequence == FENCE:
                return
            assert to == port, f"an answer for {to}, not for {port}"
            yield (datagram[:12] + bytes(4) + datagram[16:length]).hex()  # our address differs from run to run
            datagram = datagram[(length + 3) & ~3 :]


main()

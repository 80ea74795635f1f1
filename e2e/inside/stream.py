"""A TCP stream and how fast it is, from the command line: ordinary sockets, as any program has them.

python3 -m e2e.inside.stream receive PORT SECONDS       take one connection; print the rate after its first second
python3 -m e2e.inside.stream send HOST PORT [SOURCE]    send until killed; then the other end is done, too
"""

import contextlib
import json
import socket
import sys
import time

CHUNK = 1 << 16
WARM_UP_S = 1.0  # what fits into buckets and buffers passes at once


def receive(port: int, seconds: float) -> None:
    with socket.create_server(("", port)) as listening, listening.accept()[0] as connection:
        connection.recv(1)
        _count(connection, WARM_UP_S)
        received, took = _count(connection, seconds)
        print(json.dumps({"mbps": received * 8 / took / 1e6}), flush=True)
        with contextlib.suppress(ConnectionError):
            while connection.recv(CHUNK):
                pass


def _count(connection: socket.socket, seconds: float) -> tuple[int, float]:
    """Return how many bytes came, and in what time."""
    started, received = time.monotonic(), 0
    while (took := time.monotonic() - started) < seconds:
        received += len(connection.recv(CHUNK))
    return received, took


def send(host: str, port: int, source: str = "") -> None:
    with (
        socket.create_connection((host, port), source_address=(source, 0) if source else None) as connection,
        contextlib.suppress(ConnectionError),
    ):
        while True:
            connection.sendall(bytes(CHUNK))


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(int(sys.argv[2]), float(sys.argv[3]))
    else:
        send(sys.argv[2], int(sys.argv[3]), *sys.argv[4:])

"""Volume files of GlusterFS: the graph of translators, as text. Pure.

No performance translator caches anything, so a read always asks the brick: that, with direct I/O and zero timeouts
of the client, is what makes a volume linearizable (reference/csi.md section 4.4, and ``make consistency``).

Source: GlusterFS 10 and 11, xlators/*/src options tables; `glusterfsd --volfile`.
"""

from collections.abc import Iterable

PING_S = 10  # a client gives up on a silent brick after this long, and pods read ENOTCONN


def brick(name: str, share: str, *, listen: str, port: int, allowed: Iterable[str]) -> str:
    """Return the server's graph: files under ``share``, offered as ``name`` to the addresses ``allowed``."""
    return "".join(
        (
            _translator("posix", "storage/posix", {"directory": share}),
            _translator("locks", "features/locks", {}, "posix"),
            _translator(name, "performance/io-threads", {"thread-count": "16"}, "locks"),
            _translator(
                "server",
                "protocol/server",
                {
                    "transport-type": "tcp",
                    "transport.socket.bind-address": listen,
                    "transport.socket.listen-port": str(port),
                    "transport.tcp-user-timeout": str(PING_S),
                    f"auth.addr.{name}.allow": ",".join(allowed),
                },
                name,
            ),
        )
    )


def client(name: str, *, host: str, port: int) -> str:
    """Return the client's graph."""
    return _translator(
        "client",
        "protocol/client",
        {
            "transport-type": "tcp",
            "remote-host": host,
            "remote-port": str(port),
            "remote-subvolume": name,
            "ping-timeout": str(PING_S),
        },
    )


def _translator(name: str, kind: str, options: dict[str, str], below: str | None = None) -> str:
    lines = [f"volume {name}", f"  type {kind}"]
    lines += [f"  option {key} {value}" for key, value in options.items()]
    if below:
        lines.append(f"  subvolumes {below}")
    return "\n".join([*lines, "end-volume", "", ""])

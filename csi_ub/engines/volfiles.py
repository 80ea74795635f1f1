"""Volume files of GlusterFS: the graph of translators, as text. Pure.

No performance translator caches anything, so a read always asks a brick: that, with direct I/O and zero timeouts
of the client, is what makes a volume linearizable (reference/csi.md section 4.4, and ``make consistency``). With
three bricks a client works as long as it reaches two of them, and fails otherwise: two halves cannot both go on.

Source: GlusterFS 10 and 11, xlators/*/src options tables; `glusterfsd --volfile`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

PING_S = 10  # a client gives up on a silent brick after this long, and pods read ENOTCONN
INDEX = ".glusterfs/indices"  # below a brick: what another brick missed
_HEAL = {"data-self-heal": "on", "metadata-self-heal": "on", "entry-self-heal": "on"}
_LISTEN = "transport.socket.listen-port"
_LOOK_S = 10  # how often a healer looks for what it was not told of


@dataclass(frozen=True, slots=True)
class Login:
    """What a client tells a brick; nothing, where bricks know it by its address."""

    name: str
    password: str


def by_address(name: str, hosts: Iterable[str]) -> dict[str, str]:
    """Return the options of a server that admits ``hosts``; nobody if there is none."""
    return {f"auth.addr.{name}.allow": ",".join(hosts) or "255.255.255.255"}


def by_login(name: str, passwords: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a server that admits who has one of ``passwords``, by login name."""
    found = {f"auth.login.{name}.allow": ",".join(passwords) or "-"}
    return found | {f"auth.login.{login}.password": password for login, password in passwords.items()}


def brick(name: str, share: str, *, listen: str, port: int, access: Mapping[str, str], uuid: str | None = None) -> str:
    """Return the server's graph: files under ``share``, offered as ``name`` to those whom ``access`` admits.

    With a ``uuid`` it is one of three, and notes in an index what the others miss.
    """
    posix, index, below = {"directory": share}, "", "locks"
    if uuid:
        posix["volume-id"] = uuid
        watched = {"xattrop-dirty-watchlist": "trusted.afr.dirty", "xattrop-pending-watchlist": f"trusted.afr.{name}-"}
        index, below = (
            _translator("index", "features/index", {"index-base": f"{share}/{INDEX}", **watched}, below),
            "index",
        )
    return "".join(
        (
            _translator("posix", "storage/posix", posix),
            _translator("locks", "features/locks", {}, "posix"),
            index,
            _translator(name, "performance/io-threads", {"thread-count": "16"}, below),
            _translator(
                "server",
                "protocol/server",
                {
                    "transport-type": "tcp",
                    "transport.socket.bind-address": listen,
                    _LISTEN: str(port),
                    "transport.tcp-user-timeout": str(PING_S),
                    **access,
                },
                name,
            ),
        )
    )


def port(text: str) -> int:
    """Return the port in a server's graph; 0 if there is none."""
    lines = (line.split() for line in text.splitlines())
    return next((int(words[2]) for words in lines if words[:2] == ["option", _LISTEN]), 0)


def client(name: str, places: Sequence[tuple[str, int]], login: Login | None = None) -> str:
    """Return the client's graph: one brick, or three that are to be alike."""
    if len(places) == 1:
        return _connection("client", name, *places[0], login)
    return _replicated(name, places, login, {})


def healer(name: str, places: Sequence[tuple[str, int]], login: Login | None = None) -> str:
    """Return the graph of the daemon that brings a brick up to date that was away."""
    options = {"iam-self-heal-daemon": "yes", "self-heal-daemon": "on", "heal-timeout": str(_LOOK_S)}
    return _replicated(name, places, login, options) + _translator("healer", "debug/io-stats", {}, name)


def _replicated(name: str, places: Sequence[tuple[str, int]], login: Login | None, options: Mapping[str, str]) -> str:
    names = [f"{name}-client-{number}" for number in range(len(places))]
    connections = [_connection(each, name, *place, login) for each, place in zip(names, places, strict=True)]
    afr = {"quorum-type": "auto", "afr-pending-xattr": ",".join(names), **_HEAL, **options}
    return "".join((*connections, _translator(name, "cluster/replicate", afr, " ".join(names))))


def _connection(name: str, brick: str, host: str, port: int, login: Login | None) -> str:
    options = {
        "transport-type": "tcp",
        "remote-host": host,
        "remote-port": str(port),
        "remote-subvolume": brick,
        "ping-timeout": str(PING_S),
        "transport.tcp-user-timeout": str(PING_S),  # a try to connect ends too, instead of waiting ever longer
    }
    if login:
        options |= {"username": login.name, "password": login.password}
    return _translator(name, "protocol/client", options)


def _translator(name: str, kind: str, options: Mapping[str, str], below: str | None = None) -> str:
    lines = [f"volume {name}", f"  type {kind}"]
    lines += [f"  option {key} {value}" for key, value in options.items()]
    if below:
        lines.append(f"  subvolumes {below}")
    return "\n".join([*lines, "end-volume", "", ""])

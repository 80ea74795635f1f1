"""The CNI executable: read the request, let the warm agent answer it, print one JSON document.

Every pod start pays for this module's imports, so there are few (a test lists them): not even ``json`` and
``socket``, which cost 6 ms each. VERSION and a wrong environment are answered here. The rest goes to the agent's
socket as it came; if no agent answers, the engine does the work in this process, under the same locks and with the
same ledger. The agent is needed for speed only. How the engine is loaded the caller of ``main`` knows.

Source: design section 4; containernetworking/cni SPEC.md 1.1.0.
"""

import os
import sys

from cni_ub import spec, wire

TYPE_CHECKING = False  # typing's own, without its import
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Engine = Callable[[bytes, bytes], tuple[int, bytes]]  # stdin and nonce in; exit code and document out

CONNECT_TIMEOUT = 2.0  # seconds until a worker of the agent must be ours
ANSWER_TIMEOUT = 150.0  # seconds; longer than the engine's own deadlines together
ONE_CALL = "one-call"  # the argument by which ub-agent knows that it is to be the engine of one call
STDIN_PATIENCE = 0.25  # seconds that VERSION waits for a configuration it hardly needs


def main(engine: "Engine", argv: "Sequence[str] | None" = None) -> int:
    """Answer one CNI command; return 0, or 1 after printing a CNI error object.

    Args:
        engine: does the work when no agent answers.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    return _about(arguments) if arguments else finish(lambda: _answer(engine))


def finish(call: "Callable[[], tuple[int, bytes]]") -> int:
    """Carry out a call and print its document, or a CNI error object; return the exit code."""
    _fill_standard_descriptors()
    try:
        code, document = call()
        return _print(document) or code
    except spec.Refused as refused:
        _print(refused.document())
    except Exception as error:  # a runtime needs a CNI error, whatever went wrong
        _print(spec.Refused(spec.INTERNAL, f"{type(error).__name__}: {error}").document())
    return 1


def _about(arguments: "Sequence[str]") -> int:
    from ubhost.version import version

    if arguments == ["--version"]:
        return _print(f"ub-cni {version()}\n".encode())
    _complain("usage: CNI_COMMAND=… ub-cni < network-configuration.json, or ub-cni --version\n")
    return 2


def _answer(engine: "Engine") -> tuple[int, bytes]:
    verb = os.environ.get("CNI_COMMAND", "")
    if not verb:
        from ubhost.version import version

        _complain(f"ub-cni {version()}: gives a pod its UB device; CNI versions {', '.join(spec.VERSIONS)}\n")
        return 0, b""
    if verb == "VERSION":
        return 0, spec.versions(_read_patiently())
    spec.check_environment(os.environ)
    stdin, nonce = read_all(0), os.urandom(8).hex().encode()
    return _ask_agent(stdin, nonce) or engine(stdin, nonce)


def _ask_agent(stdin: bytes, nonce: bytes) -> tuple[int, bytes] | None:
    """Return the agent's exit code and document; ``None`` if there is no agent to do it."""
    import _socket

    path = os.path.join(os.environ.get("UB_ROOT") or "/", "run/ub-node/agent.sock")  # noqa: PTH118
    pod = _open_netns(os.environ.get("CNI_NETNS", ""))
    agent = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        agent.settimeout(CONNECT_TIMEOUT)
        agent.connect(path)
        if agent.recv(256) != wire.greeting(os.stat("/proc/self/ns/net").st_ino):  # noqa: PTH116
            return None  # of another version, or its host is not ours
        agent.settimeout(ANSWER_TIMEOUT)
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, wire.descriptor(fd)) for fd in pod]
        data = wire.request(os.environb, nonce, stdin)
        agent.sendall(data[agent.sendmsg([data], rights) :])
        agent.shutdown(_socket.SHUT_WR)
        received = b""
        while chunk := agent.recv(1 << 16):
            received += chunk
        return wire.parse_answer(received)
    except (OSError, wire.Malformed):  # no agent, or it went away: the engine takes back what it began, and starts over
        return None
    finally:
        agent.close()
        for fd in pod:
            os.close(fd)


def _open_netns(path: str) -> list[int]:
    """Open the pod's namespace here, so that the agent need not see the path. What is wrong with it the engine says."""
    try:
        return [os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)] if path else []
    except OSError:
        return []


def become(executable: str, stdin: bytes, nonce: bytes) -> "tuple[int, bytes]":
    """Be an engine: go on as ``executable``, which is told to answer one call, with the same stdin once more.

    Raises:
        Refused: it cannot be run; in no words that a runtime takes for a DEL that found nothing.
    """
    copy = os.memfd_create("network-configuration")
    while stdin:
        stdin = stdin[os.write(copy, stdin) :]
    os.lseek(copy, 0, os.SEEK_SET)
    os.dup2(copy, 0)
    try:
        os.execv(executable, [executable, ONE_CALL, nonce.decode()])  # noqa: S606
    except OSError as error:
        raise spec.Refused(
            spec.INTERNAL, f"no agent answers, and {executable} cannot be run: errno {error.errno}"
        ) from None


def _fill_standard_descriptors() -> None:
    """Keep sockets and files off numbers 0 to 2: one that the runtime closed would else become our stdin or stdout."""
    while (fd := os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)) <= 2:
        pass
    os.close(fd)


def read_all(fd: int) -> bytes:
    read = b""
    try:
        while chunk := os.read(fd, 1 << 16):
            read += chunk
    except OSError as error:
        raise spec.Refused(spec.DECODING_FAILURE, f"cannot read the configuration: {error.strerror}") from None
    return read


def _read_patiently() -> bytes:
    """Read what stdin holds, but never wait for long: VERSION must work with a stdin that nobody closes."""
    import select

    read = b""
    while True:
        try:
            if not select.select([0], [], [], STDIN_PATIENCE)[0] or not (chunk := os.read(0, 1 << 16)):
                return read
        except (OSError, ValueError):  # stdin is closed
            return read
        read += chunk


def _print(document: bytes) -> int:
    """Write the one document; return the exit code: 0, or 1 if nobody can have read it."""
    try:
        while document:
            document = document[os.write(1, document) :]
    except OSError as error:
        _complain(f"ub-cni: cannot write the answer: {error.strerror}\n")
        return 1
    return 0


def _complain(line: str) -> None:
    """Tell a person. Not by ``sys.stderr``: the runtime may have closed it, and then it is ``None``."""
    try:  # noqa: SIM105 - contextlib costs a start-up its time
        os.write(2, line.encode())
    except OSError:  # there is nobody left to tell
        pass

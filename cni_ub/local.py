"""The engine in the shim's own process, for one call: when no agent answers.

stdout belongs to the answer, so whatever a library or a delegate might print there goes to stderr. SIGTERM and
SIGINT end the call between two steps: it takes back what it did and answers with an error.
"""

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import TextIO, cast

from cni_ub import engine, shim, spec
from cni_ub.agent.settings import DEFAULT_RESOURCE, KubeletSettings
from cni_ub.host import Host
from cni_ub.kubelet import devices_of
from cni_ub.protocol import read_conf
from ubhost import log, providers
from ubhost.errors import InvalidRequest
from ubhost.ledger import Ledger
from ubhost.roots import Roots


def main() -> int:
    """Be what ``cni_ub.shim.become`` starts: the nonce is the second argument."""
    return shim.finish(lambda: run(os.environ, sys.argv[2], shim.read_all(0)))


def run(environ: Mapping[str, str], nonce: str, stdin: bytes) -> tuple[int, bytes]:
    """Answer one call; see ``engine.run``."""
    roots = Roots.from_environ(environ)
    asked = devices_of(roots, (DEFAULT_RESOURCE,), KubeletSettings().folder)
    host = Host(roots, Ledger(roots), lambda: providers.choose(roots), asked, is_short_lived=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: host.stop.request(f"stopped by {signal.Signals(received).name}"))
    _set_up_log(environ, stdin)
    with _stdout_is_stderr():
        return engine.run(host, environ, nonce, stdin)


@contextlib.contextmanager
def _stdout_is_stderr() -> Iterator[None]:
    if sys.stdout:  # the runtime may have closed it
        sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


class LogFile(io.TextIOBase):
    """A log that cannot be written must not fail a call: then its lines go to stderr."""

    def __init__(self, path: str) -> None:
        self._fd = -1
        with contextlib.suppress(OSError, ValueError):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            self._fd = os.open(path, flags, 0o600) if path else 2

    def write(self, text: str) -> int:
        data = text.encode(errors="surrogateescape")
        try:
            os.write(self._fd, data)
        except OSError:
            with contextlib.suppress(OSError):
                os.write(2, data)
        return len(text)


def _set_up_log(environ: Mapping[str, str], stdin: bytes) -> None:
    level, path = "info", ""
    with contextlib.suppress(spec.Refused, InvalidRequest):
        conf = read_conf(spec.check_config(environ.get("CNI_COMMAND", ""), stdin))
        level, path = conf.log_level, conf.log_file
    log.set_up(level, cast("TextIO", LogFile(path)))

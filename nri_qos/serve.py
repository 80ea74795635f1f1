"""Where the daemon answers people: a root-only socket for ``ubnode qos``."""

import json
import logging
import socket
import threading
import time
from pathlib import Path
from typing import Any, cast

from nri_qos.report import Report
from ubhost.errors import HostFault, NotFound

SOCKET = "nri-qos.sock"
VERSION = 1  # of what is told
TIMEOUT_S = 15.0
_log = logging.getLogger(__name__)


def ask(folder: Path) -> dict[str, Any]:
    """Return what the daemon of this node tells, see ``StatusSocket``.

    Raises:
        NotFound: none runs.
        HostFault: it does not answer.
    """
    path = folder / SOCKET
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(TIMEOUT_S)
            peer.connect(str(path))
            with peer.makefile("rb") as answer:
                content = json.load(answer)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise NotFound(f"nri-qos does not run on this node: nobody answers at {path}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise HostFault(f"nri-qos does not answer at {path}: {error}") from error
    is_ours = isinstance(content, dict) and content.get("version") == VERSION
    if not is_ours:
        raise HostFault(f"what answers at {path} is no nri-qos of this release: ask with the ubnode of its own")
    return cast("dict[str, Any]", content)


class StatusSocket(threading.Thread):
    """Writes ``{"version": 1, "state": …, "pods": […]}`` to everyone who connects. The folder is root's alone."""

    def __init__(self, folder: Path, report: Report) -> None:
        """Listen.

        Raises:
            HostFault: the path is too long or cannot be written.
        """
        super().__init__(name="status", daemon=True)
        self._report = report
        path = folder / SOCKET
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            path.unlink(missing_ok=True)
            self._listener.bind(str(path))
            path.chmod(0o600)
            self._listener.listen(8)
        except OSError as error:
            self._listener.close()
            raise HostFault(f"cannot listen at {path}: {error}") from error

    def run(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:  # out of descriptors or memory
                time.sleep(1)
                continue
            with peer:
                self._answer(peer)

    def _answer(self, peer: socket.socket) -> None:
        try:
            peer.settimeout(TIMEOUT_S)
            content = {"version": VERSION, "state": self._report.state(), "pods": self._report.pods()}
            peer.sendall(json.dumps(content).encode())
        except OSError as error:
            _log.debug("nobody waited for the status", extra={"error": str(error)})
        except Exception:
            _log.exception("the status cannot be told")

"""One Syncthing for a node, driven through its REST interface on a socket that only root reaches.

It talks to the peers of the configuration and to nobody else: no discovery, no relays, no reports, no upgrades. The
daemon outlives the driver.
"""

import http.client
import json
import os
import secrets
import socket
import ssl
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from csi_ub import programs
from csi_ub.locks import hold
from csi_ub.reasons import Unreachable
from csi_ub.syncthing.deviceid import device_id
from ubhost.errors import HostFault, NotFound

PORT = 22000
_START_S = 15.0
_CONFIG = """<configuration version="35">
  <gui enabled="true" tls="false"><address>{socket}</address><apikey>{key}</apikey></gui>
  <options>
    <listenAddress>tcp://{listen}:{port}</listenAddress>
    <globalAnnounceEnabled>false</globalAnnounceEnabled>
    <localAnnounceEnabled>false</localAnnounceEnabled>
    <relaysEnabled>false</relaysEnabled>
    <natEnabled>false</natEnabled>
    <reconnectionIntervalS>1</reconnectionIntervalS>
    <urAccepted>-1</urAccepted>
    <autoUpgradeIntervalH>0</autoUpgradeIntervalH>
    <crashReportingEnabled>false</crashReportingEnabled>
    <startBrowser>false</startBrowser>
  </options>
</configuration>
"""


@dataclass(frozen=True, slots=True)
class Daemon:
    """``home`` keeps its keys and index over reboots, ``run`` its socket and pid; it listens on ``address`` only."""

    home: Path
    run: Path
    address: str | None

    def start(self) -> None:
        """See that it runs and answers.

        Raises:
            Unsupported: Syncthing is not installed.
            HostFault: it does not start.
        """
        for folder in (self.home, self.run):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with hold(self.run, "syncthing daemon", wait_s=_START_S):
            if programs.is_running(self.run / "pid", str(self.home)):
                return
            program, home = programs.find("syncthing"), str(self.home)
            if not (self.home / "cert.pem").exists():
                programs.run(["syncthing", "generate", "--home", str(self.home), "--no-default-folder"])
                self._write_config()
            (self.run / "gui.sock").unlink(missing_ok=True)
            with (self.run / "log").open("ab") as out:
                process = subprocess.Popen(
                    programs.apart([program, "serve", "--home", home, "--no-browser", "--no-restart", "--no-upgrade"]),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env=programs.environment() | {"HOME": str(self.home)},
                    cwd="/",
                    start_new_session=True,
                )
            (self.run / "pid").write_text(str(process.pid), encoding="ascii")
            self._wait()

    def is_running(self) -> bool:
        return programs.is_running(self.run / "pid", str(self.home)) is not None

    @property
    def device(self) -> str:
        """The id of this node's device."""
        return device_id(ssl.PEM_cert_to_DER_cert((self.home / "cert.pem").read_text(encoding="ascii")))

    def get(self, path: str, **query: str) -> Any:
        """Return an answer of the REST interface.

        Raises:
            NotFound: it knows no such thing.
            Unreachable: it does not answer.
        """
        return self._call("GET", path, query)

    def put(self, path: str, content: object) -> None:
        self._call("PUT", path, {}, json.dumps(content))

    def delete(self, path: str) -> None:
        self._call("DELETE", path, {})

    def scan(self, folder: str) -> None:
        self._call("POST", "db/scan", {"folder": folder})

    def _call(self, method: str, path: str, query: dict[str, str], body: str | None = None) -> Any:
        arguments = "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items())
        connection = _UnixConnection(self.run / "gui.sock")
        try:
            connection.request(method, f"/rest/{path}?{arguments}", body, {"X-API-Key": self._key()})
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"Syncthing does not answer: {error}") from error
        finally:
            connection.close()
        if answer.status == 404:
            raise NotFound(f"Syncthing knows no {path}")
        if answer.status >= 300:
            raise HostFault(f"Syncthing answers {answer.status} to {method} {path}: {text[:200]!r}")
        return json.loads(text) if text.strip() else None

    def _key(self) -> str:
        return (self.home / "apikey").read_text(encoding="ascii")

    def _write_config(self) -> None:
        key = secrets.token_hex(16)
        descriptor = os.open(self.home / "apikey", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as out:
            out.write(key)
        text = _CONFIG.format(
            socket=self.run / "gui.sock",
            key=key,
            listen=self.address or "0.0.0.0",  # noqa: S104 - it answers known devices only
            port=PORT,
        )
        (self.home / "config.xml").write_text(text, encoding="utf-8")
        (self.home / "config.xml").chmod(0o600)

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self.get("system/ping")
            except Unreachable as error:
                if time.monotonic() > deadline:
                    raise HostFault(f"Syncthing does not start, see {self.run / 'log'}: {error}") from error
                time.sleep(0.05)
            else:
                return


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=5)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))

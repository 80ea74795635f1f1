"""A control plane of Kubernetes on this machine's loopback, for the length of a test: etcd and an API server.

Keys, certificates and tokens are made for it and lie in its folder; it dies with us, however we die.
"""

import base64
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.kubernetes.api import Api, Refused

START_S = 180.0
STOP_S = 20.0
SERVER_NAME = "kubernetes"  # in the certificate that the server makes for itself
USERS = {  # user -> groups; each gets a token
    "admin": "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
    "system:node:node0": "system:nodes",
}


@dataclass(frozen=True)
class ControlPlane:
    """An API server that runs; ``api`` is the cluster as its administrator sees it."""

    folder: Path
    programs: Path
    port: int
    tokens: dict[str, str]

    @property
    def certificate(self) -> Path:
        return self.folder / "certificates" / "apiserver.crt"

    @property
    def api(self) -> Api:
        return Api("127.0.0.1", self.port, self.certificate.read_text(), self.tokens["admin"])

    def kubeconfig(self, user: str, server: str = "") -> dict[str, object]:
        """Return what a client needs; YAML is a superset of this JSON.

        Args:
            server: host and port at which it reaches us, if not by loopback.
        """
        cluster = {
            "server": f"https://{server or f'127.0.0.1:{self.port}'}",
            "tls-server-name": SERVER_NAME,
            "certificate-authority-data": _base64(self.certificate),
        }
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": user}}],
            "current-context": "e2e",
        }

    def write_kubeconfig(self, user: str) -> Path:
        path = self.folder / f"{user.rpartition(':')[2]}.kubeconfig"
        path.write_text(json.dumps(self.kubeconfig(user)))
        return path

    @contextlib.contextmanager
    def controllers(self) -> Iterator[None]:
        """Run what makes pods of DaemonSets, gives accounts to namespaces, and chooses nodes for pods."""
        with contextlib.ExitStack() as running:
            for name, more in {
                "kube-controller-manager": (
                    f"--service-account-private-key-file={self.folder}/accounts.key",
                    f"--root-ca-file={self.certificate}",
                    "--use-service-account-credentials=true",
                ),
                "kube-scheduler": (),
            }.items():
                config = self.write_kubeconfig(f"system:{name}")
                common = (f"--kubeconfig={config}", f"--authentication-kubeconfig={config}", "--leader-elect=false")
                running.enter_context(process(self.folder, self.programs / name, "--secure-port=0", *common, *more))
            yield


@contextlib.contextmanager
def control_plane(folder: Path, programs: Path) -> Iterator[ControlPlane]:
    """Run etcd and an API server of ``programs``; all they write is below ``folder``."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    shutil.rmtree(folder / "etcd", ignore_errors=True)  # of a run before
    plane = ControlPlane(folder, programs, _free_port(), {user: secrets.token_hex(16) for user in USERS})
    lines = [f'{plane.tokens[user]},{user},{user},"{groups}"\n' for user, groups in USERS.items()]
    (folder / "tokens.csv").write_text("".join(lines))
    key = folder / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    store, peers = f"unix://{folder}/etcd.sock", f"unix://{folder}/peers.sock"
    etcd = (
        *(f"--data-dir={folder}/etcd", "--unsafe-no-fsync"),
        *(f"--listen-client-urls={store}", f"--advertise-client-urls={store}", f"--listen-peer-urls={peers}"),
        *(f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}"),
    )
    server = (
        *(f"--etcd-servers={store}", f"--cert-dir={folder}/certificates", f"--token-auth-file={folder}/tokens.csv"),
        *("--bind-address=127.0.0.1", f"--secure-port={plane.port}", "--endpoint-reconciler-type=none"),
        *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true"),
        *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
        *("--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.96.0.0/16"),
    )
    with process(folder, programs / "etcd", *etcd), process(folder, programs / "kube-apiserver", *server) as running:
        _wait_until_ready(plane, running)
        yield plane


@contextlib.contextmanager
def process(
    folder: Path, program: Path, *arguments: str, env: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program; its log is ``folder/NAME.log``. It is told to end at the end, and killed if it does not."""
    command = ["setpriv", "--pdeathsig", "KILL", str(program), *arguments]
    with (folder / f"{program.name}.log").open("wb") as log:
        running = subprocess.Popen(
            command,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield running
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            running.wait(STOP_S)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def _wait_until_ready(plane: ControlPlane, running: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError, Refused):
            plane.api.call("GET", "/readyz")
            return
        log = plane.folder / "kube-apiserver.log"
        if running.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"the API server is not ready, see {log}: {log.read_text()[-2000:]}")
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()

"""A real cluster of one node: the control plane runs here, kubelet in a guest, on the containerd that it asks for.

Needs Go, which builds Kubernetes (make kubernetes, once): without it, and where it is not built, nothing is tested.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.__main__ import INSIDE_ENV, OUTPUT, PYTEST, REPO, TESTS_S, parts
from e2e.image import Image
from e2e.kubernetes.controlplane import ControlPlane, control_plane
from e2e.machine import Machine, Spec, Uplink
from e2e.outside.test_newer_containerd import DROP_INS, UNIT
from e2e.payload import payload

# With the first packet that it sees, conntrack changes code of the kernel. An emulated CPU that carries packets at that
# moment may run half of the change (QEMU's TCG; seen as a panic): let it happen when the network is at rest.
FIRST_PACKET = "iptables -A INPUT -i lo -m conntrack --ctstate INVALID -j DROP; ping -c 1 127.0.0.1; sleep 1"
SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE = "system:node:node0"


def programs(script: str, *names: str) -> list[Path]:
    """Return where test tools are; skip the tests without them."""
    environ = {**os.environ, "UB_E2E_BUILT": "1"}
    done = subprocess.run([REPO / script, *names], env=environ, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return [Path(line) for line in done.stdout.split()]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    etcd, *_ = programs("e2e/kubernetes/build", "etcd", *SERVERS, "kubelet")
    folder = OUTPUT / "kubernetes" / "control-plane"
    with control_plane(folder, etcd.parent) as plane, plane.controllers():
        yield plane


@pytest.fixture(scope="module")
def node(guest: Image, plane: ControlPlane) -> Iterator[Machine]:
    """A guest that can join: it has kubelet, a containerd that this kubelet takes, and knows the cluster."""
    runtime = programs("e2e/install-go-tools", "containerd", "containerd-shim-runc-v2")
    added = [(path, f"containerd/{path.name}") for path in runtime]
    added += [
        (plane.programs / "kubelet", "kubernetes/kubelet"),
        (REPO / "e2e/kubernetes/api.py", "e2e/kubernetes/api.py"),
    ]
    folder = OUTPUT / "kubernetes"
    told = {
        "host": Uplink.HOST,
        "port": plane.port,
        "certificate": plane.certificate.read_text(),
        "token": plane.tokens["admin"],
        "kubeconfig": plane.kubeconfig(NODE, server=f"{Uplink.HOST}:{plane.port}"),
    }
    with payload(*parts(), *added) as disk, Machine(Spec(guest, disk, link=Uplink()), folder) as machine:
        machine.run("sh", "-c", "mkdir -p $D && cat >$D/newer.conf", stdin=UNIT.encode(), env={"D": DROP_INS})
        machine.run("sh", "-c", "umask 077; cat >/run/cluster.json", stdin=json.dumps(told).encode())
        machine.shell("systemctl daemon-reload && systemctl restart containerd && mkdir -p /tmp/results")
        machine.shell(FIRST_PACKET)
        machine.shell(f"ip address add {Uplink.GUEST} dev eth0")
        yield machine
        machine.shell("journalctl -u kubelet -o cat >/tmp/results/kubelet.log || true")
        machine.fetch("/var/log", folder / "node0-log")
        machine.fetch("/tmp/results", folder)


def test_pods_of_an_unmodified_kubernetes_get_devices_volumes_and_qos(node: Machine) -> None:
    done = node.run(
        *("python3", "-m", "pytest", *PYTEST, "--junitxml=/tmp/results/kubernetes.xml"),
        "/mnt/payload/e2e/inside/test_kubernetes.py",
        env=INSIDE_ENV,
        timeout_s=2 * TESTS_S,
    )
    assert done.exit == 0, done.text[-6000:]

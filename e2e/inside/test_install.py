"""The plugins as a platform engineer installs them: the hardened units of an installed release do the work of a node.

The agent's UB host is simulated (level: stand-in); systemd, containerd, kernel and files are real.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as pb
from ubproto.csi.v1 import csi_pb2_grpc as rpc

from e2e.inside.cri import Runtime
from e2e.inside.host import Belongings, attachments, eids_in
from e2e.inside.installed import (
    CSI_SOCKET,
    UNITS,
    installed,
    journal,
    main_pid,
    newer_bundle,
    restarts,
    systemctl,
    ubnode,
)
from e2e.inside.network import BRIDGE, links, write_conflist
from e2e.inside.programs import wait_until
from e2e.inside.test_qos import HALF, check_offline, start

OURS = ("/etc", "/opt", "/var/lib/ub-node", "/var/lib/kubelet", "/run/ub-node", "/run/cdi")
OTHERS = ("/etc/cni/net.d", "/etc/.updated")  # the tests' own lists; systemd's end of the boot


def files() -> dict[str, str]:
    """Every file, link and folder where an installation could leave something, with what it holds."""
    found = {}
    for top in OURS:
        for path in [Path(top), *sorted(Path(top).rglob("*"))]:
            if path.is_symlink():
                found[str(path)] = f"-> {path.readlink()}"
            elif path.is_dir():
                found[str(path)] = "folder"
            elif path.is_file():
                found[str(path)] = str(hash(path.read_bytes()))
    return found


@pytest.fixture(scope="module")
def untouched() -> dict[str, str]:
    """The files of the node before anything was installed."""
    Path("/opt/cni/bin/ub-cni").unlink(missing_ok=True)  # other tests link it there by hand
    for folder in ("/run/ub-node", "/var/lib/ub-node"):  # and run daemons by hand
        shutil.rmtree(folder, ignore_errors=True)
    write_conflist(BRIDGE, {"type": "ub-cni", "deviceID": "urma_1"})
    return files()


@pytest.fixture(scope="module", autouse=True)
def release(untouched: dict[str, str]) -> Iterator[None]:
    with installed(2):
        yield


def check_units_run() -> None:
    for unit in UNITS:
        assert systemctl("is-active", unit) == "active", journal(unit)[-2000:]
        assert restarts(unit) == 0, journal(unit)[-2000:]


def test_a_pod_gets_its_device_from_the_hardened_agent(runtime: Runtime) -> None:
    before = Belongings.now()
    pod = runtime.run_pod("installed")
    assert "ub0" in links(pod.netns)
    assert eids_in(pod)
    assert [holder["container"] for holder in attachments()] == [pod.id]
    assert pod.id in journal("ub-agent.service"), "the agent did it, not ub-cni alone"
    runtime.remove_pod(pod)
    assert Belongings.now() == before
    check_units_run()


def test_nri_qos_needs_no_capability_to_place_an_offline_container(runtime: Runtime) -> None:
    wait_until(lambda: "synchronized with the runtime" in journal("nri-qos.service"), "nri-qos is registered")
    status = Path(f"/proc/{main_pid('nri-qos.service')}/status").read_text()
    assert "CapEff:\t0000000000000000" in status
    write_conflist(BRIDGE)
    check_offline(start(runtime, "installed-offline", "BE", HALF))
    check_units_run()


def test_the_driver_answers_where_kubelet_looks_for_it() -> None:
    with grpc.insecure_channel(CSI_SOCKET) as channel:
        rpc.IdentityStub(channel).Probe(pb.ProbeRequest(), timeout=60, wait_for_ready=True)
    check_units_run()


def test_an_upgrade_restarts_the_units_and_pods_keep_their_devices(runtime: Runtime, tmp_path: Path) -> None:
    write_conflist(BRIDGE, {"type": "ub-cni", "deviceID": "urma_1"})
    before = Belongings.now()
    pod = runtime.run_pod("upgraded")
    held = eids_in(pod)
    ubnode("upgrade", "--from", str(newer_bundle(tmp_path / "newer")))
    for unit in UNITS:
        assert Path(f"/proc/{main_pid(unit)}/exe").readlink().is_relative_to("/opt/ub-node/99.0.0")
    assert eids_in(pod) == held
    runtime.remove_pod(pod)  # by the new release, what the old one attached
    assert Belongings.now() == before


def test_uninstalling_gives_the_node_back(untouched: dict[str, str]) -> None:
    ubnode("uninstall")
    now = files()
    different = {path for path in untouched.keys() | now.keys() if untouched.get(path) != now.get(path)}
    assert {path for path in different if not path.startswith(OTHERS)} == set()
    for unit in UNITS:
        assert systemctl("is-active", unit) != "active"
        assert systemctl("show", "-P", "LoadState", unit) == "not-found"

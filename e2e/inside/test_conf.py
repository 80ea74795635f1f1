"""The agent puts ub-cni into the node's CNI configuration by itself, and a real containerd takes it from there."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.inside.cri import Runtime
from e2e.inside.host import ROOT, Belongings, admit, agent_and_kubelet, attachments, simulated_host
from e2e.inside.network import BRIDGE, CONF_DIR, CONFLIST, install_plugin, links, write_conflist
from e2e.inside.programs import BUNDLE, wait_until
from ubsim.kubelet import Kubelet

DEVICES = 2


@pytest.fixture(scope="module", autouse=True)
def ub_host() -> Iterator[None]:
    """The agent's root is simulated; the configuration that it finds there is the node's own."""
    install_plugin("ub-cni", BUNDLE / "ub-cni")
    with simulated_host(DEVICES):
        seen_by_agent = ROOT / CONF_DIR.relative_to("/")
        seen_by_agent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--bind", CONF_DIR, seen_by_agent], check=True)
        yield
        subprocess.run(["umount", seen_by_agent], check=True)


@contextmanager
def configuring(mode: str, folder: Path) -> Iterator[Kubelet]:
    """Run the agent in a mode, and off at the end: what it wrote goes."""
    for last in (mode, "off"):
        config = folder / "ub-agent.yaml"
        config.write_text(f"conf: {{mode: {last}}}\n")
        with agent_and_kubelet(DEVICES, "--config", str(config)) as kubelet:
            if last == mode:
                yield kubelet
            else:
                wait_until(lambda: written() == {CONFLIST.name}, "nothing of ours is left in the folder")


def written() -> set[str]:
    return {str(path.relative_to(CONF_DIR)) for path in CONF_DIR.rglob("*") if path.is_file()}


def appends_by_itself() -> bool:
    """Whether containerd's libcni looks into the folder of a network: 1.3 and later, in containerd 2.1 and later."""
    said = subprocess.run(["ctr", "version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"Server:\s+Version:\s+v?(\d+)\.(\d+)", said)
    assert found, said
    return (int(found[1]), int(found[2])) >= (2, 1)


@pytest.mark.parametrize(("mode", "file"), [("conflist", "00-ub-cni.conflist"), ("subdir", "cluster/ub-cni.conf")])
def test_a_pod_gets_its_device_with_no_configuration_written_by_hand(
    runtime: Runtime, tmp_path: Path, mode: str, file: str
) -> None:
    """A libcni older than 1.3 knows no folders: then the pod has its network, and no device, as docs/cni.md says."""
    write_conflist(BRIDGE)
    before = Belongings.now()
    with configuring(mode, tmp_path) as kubelet:
        wait_until((CONF_DIR / file).exists, f"the agent has written {file}")
        assert written() == {CONFLIST.name, file}, "and nothing else"
        device = admit(kubelet, "by-itself")
        pod = runtime.run_pod("by-itself")
        assert pod.ip.startswith("10.88.")
        if mode == "conflist" or appends_by_itself():
            assert [holder["device"] for holder in attachments()] == [device]
            assert "ub0" in links(pod.netns)
        else:
            assert attachments() == []
        runtime.remove_pod(pod)
        kubelet.remove("default/by-itself")
        assert Belongings.now().differs_from(before) == []

"""The real ub-agent on a simulated node, with a test kubelet on the other side of its sockets.

``UB_BIN_DIR`` names the folder of the built executables; without it the sources run.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cni_ub.agent.podresources import PodResources
from tests.cni_ub.agent.test_cdi import violations
from tests.cni_ub.agent.test_confplan import BRIDGE, CALICO
from tests.cni_ub.machine import REPOSITORY
from tests.cni_ub.node import AGENT, SimulatedNode
from tests.waiting import wait_for
from ubsim.handles import SuperNodeHandle, handle
from ubsim.kubelet import Kubelet, Rejected

pytestmark = pytest.mark.kernel

NAME = "unifiedbus.com/ub_net_device"
SOON_S = 9.0  # the agent takes 1 s at most (bench.agent measures it), its back-stop 10; the rest is for a busy machine


class World:
    """A simulated node, its kubelet and its agent."""

    def __init__(self, folder: Path) -> None:
        self.node = SimulatedNode.up(folder, devices=4)
        self.supernode: SuperNodeHandle = handle(folder / "up")
        self.kubelet = Kubelet(self.node.root / "var/lib/kubelet")
        self.folder = folder

    def start_agent(self, **configuration: Any) -> None:
        path = self.folder / "agent.yaml"
        path.write_text(json.dumps({"metrics_address": "127.0.0.1:19478", **configuration}))
        environ = {
            **os.environ,
            "UB_ROOT": str(self.node.root),
            "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'proto'}",
        }
        with (self.folder / "agent.log").open("ab") as log:
            self.node.agent = subprocess.Popen([*AGENT, "--config", str(path)], env=environ, stderr=log)

    def down(self) -> None:
        self.node.stop_agent()
        self.kubelet.stop()
        self.node.down()

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "agent.log").read_text().splitlines()]

    def metrics(self) -> str:
        with urllib.request.urlopen("http://127.0.0.1:19478/metrics", timeout=60) as answer:
            return str(answer.read().decode())


@pytest.fixture
def world() -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="ub-"))  # short, because of sockets
    made = World(folder)
    try:
        yield made
    finally:
        made.down()
        shutil.rmtree(folder)


@pytest.fixture
def running(world: World) -> World:
    """A world in which kubelet knows of four devices."""
    world.kubelet.start()
    world.start_agent()
    world.kubelet.wait_for(NAME, healthy=4, total=4)
    return world


def within(seconds: float, what: Callable[[], object]) -> None:
    begun = time.monotonic()
    what()
    assert time.monotonic() - begun < seconds


@pytest.mark.parametrize(
    ("do", "what", "undo", "why"),
    [
        ("health", {"node": "node0", "device": "urma_1", "healthy": False}, {"healthy": True}, "bonding_dev_1 is DOWN"),
        ("eid", {"device": "udma2", "index": 0}, {"lost": False}, "udma2 has lost its EID"),
    ],
)
def test_what_happens_to_a_device_reaches_kubelet_and_the_metrics_soon(
    running: World, do: str, what: dict[str, Any], undo: dict[str, Any], why: str
) -> None:
    running.supernode["node0"].order(do, **what)
    within(SOON_S, lambda: running.kubelet.wait_for(NAME, healthy=3, total=4))
    metrics = running.metrics()
    assert 'ub_device_healthy{device="urma_1"} 0.0' in metrics
    assert why in metrics, [line for line in metrics.splitlines() if line.startswith("ub_device_fault{")]
    running.supernode["node0"].order(do, **{**what, **undo})
    within(SOON_S, lambda: running.kubelet.wait_for(NAME, healthy=4, total=4))
    assert 'ub_device_healthy{device="urma_1"} 1.0' in running.metrics()


def test_ports_that_go_down_take_their_devices_along(running: World) -> None:
    running.supernode.happen("port", port="node0/0/0/0", state="DOWN")
    within(SOON_S, lambda: _until_sick(running))
    assert "is DOWN" in running.metrics()
    running.supernode.happen("port", port="node0/0/0/0", state="ACTIVE")
    within(SOON_S, lambda: running.kubelet.wait_for(NAME, healthy=4, total=4))


def _until_sick(world: World) -> None:
    wait_for(lambda: len(world.kubelet.endpoints[NAME].healthy) < 4)


def test_devices_come_and_go(running: World) -> None:
    running.supernode.happen("unplug", node="node0", device="urma_4")
    within(SOON_S, lambda: running.kubelet.wait_for(NAME, healthy=3, total=3))
    cdi = running.node.root / "var/run/cdi/unifiedbus.com-urma.json"
    assert "urma_4" not in cdi.read_text()
    running.supernode.happen("plug", node="node0", device="urma_4")
    within(SOON_S, lambda: running.kubelet.wait_for(NAME, healthy=4, total=4))
    assert "urma_4" in cdi.read_text()
    assert violations(cdi.read_bytes()) == []


def test_the_kth_attachment_of_a_pod_gets_its_kth_device_and_metrics_say_whose_it_is(running: World) -> None:
    running.kubelet.admit("default/web", {"main": {NAME: 1}, "side": {NAME: 1}})
    given = PodResources(running.supernode["node0"].roots, [NAME]).devices_of("default", "web")
    pod = running.node.new_pod("ub-bb-web")
    args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=c1"
    conf = {"cniVersion": "1.1.0", "name": "ubnet", "type": "ub-cni"}
    for ifname in ("net1", "net2"):
        answer = running.node.call("ADD", conf, pod=pod, ifname=ifname, CNI_ARGS=args)
        assert answer.code == 0, answer
    assert sorted(running.node.ledger) == sorted(f"{d}@c1@net{n}.json" for n, d in enumerate(given, 1))
    wait_for(lambda: running.metrics().count("ub_device_owner{") == 2)
    for number, device in enumerate(given, 1):
        assert (
            f'ub_device_owner{{container_id="c1",device="{device}",interface="net{number}",pod="web",'
            f'pod_namespace="default"}} 1.0'
        ) in running.metrics()
    assert len(running.kubelet.endpoints[NAME].healthy) == 4  # EIDs that moved to a pod are not lost
    for ifname in ("net1", "net2"):
        assert running.node.call("DEL", conf, pod=pod, ifname=ifname).code == 0
    assert 'ub_cni_call_seconds_count{outcome="success",verb="ADD"} 2.0' in running.metrics()


def test_an_agent_that_was_killed_comes_back_with_nothing_lost(running: World) -> None:
    running.kubelet.admit("default/web", {"main": {NAME: 1}})
    running.node.stop_agent(signal.SIGKILL)
    wait_for(lambda: not running.kubelet.endpoints[NAME].is_alive)
    with pytest.raises(Rejected, match="no plugin serves it"):
        running.kubelet.admit("default/late", {"main": {NAME: 1}})
    running.start_agent()
    running.kubelet.wait_for(NAME, healthy=4)
    with pytest.raises(Rejected, match="requested number of devices unavailable"):
        running.kubelet.admit("default/greedy", {"main": {NAME: 4}})
    running.kubelet.admit("default/late", {"main": {NAME: 3}})


def test_a_kubelet_that_is_killed_and_restarted_is_followed(running: World) -> None:
    running.kubelet.kill()
    running.kubelet.start()
    running.kubelet.wait_for(NAME, healthy=4)


def test_ubse_may_restart_without_anybody_noticing(running: World) -> None:
    lists = running.kubelet.endpoints[NAME].lists
    running.supernode["node0"].stop_ubse()
    time.sleep(2.5)
    running.supernode["node0"].start_ubse()
    time.sleep(1.5)
    assert running.kubelet.endpoints[NAME].lists == lists
    assert len(running.kubelet.endpoints[NAME].healthy) == 4


def test_the_cni_configuration_follows_the_primary(world: World) -> None:
    folder = world.node.root / "etc/cni/net.d"
    folder.mkdir(parents=True)
    (folder / "10-calico.conflist").write_text(json.dumps(CALICO))
    world.start_agent(conf={"mode": "conflist", "network": {"isolation": "shared"}}, kubelet={"is_used": False})
    ours = folder / "00-ub-cni.conflist"
    wait_for(ours.exists)
    assert json.loads(ours.read_text())["plugins"][-1]["isolation"] == "shared"
    (folder / "10-calico.conflist").write_text(json.dumps({**CALICO, "plugins": [BRIDGE]}))
    wait_for(lambda: len(json.loads(ours.read_text())["plugins"]) == 2)
    (folder / "10-calico.conflist").unlink()
    wait_for(lambda: not ours.exists())


def test_the_agent_is_ready_once_kubelet_listens(world: World) -> None:
    world.start_agent()

    def why() -> str:
        try:
            with urllib.request.urlopen("http://127.0.0.1:19478/readyz", timeout=60) as answer:
                return str(answer.read().decode())
        except OSError as error:
            return str(getattr(error, "fp", None) and error.fp.read().decode())  # type: ignore[attr-defined]

    wait_for(lambda: "plugins_registry" in why() or "device-plugins" in why(), 20)
    world.kubelet.start()
    wait_for(lambda: json.loads(why() or "{}") == {"ready": True, "why": {}}, 20)


@pytest.mark.parametrize(
    ("configuration", "why"),
    [
        ({"resources": [{"name": "nonsense"}]}, "resource name 'nonsense' is not of the form domain.example/name"),
        ({"resources": [{"name": "kubernetes.io/x"}]}, "is not of the form"),
        ({"resources": [{"name": "a.b/c"}, {"name": "a.b/c"}]}, "resource a.b/c is given twice"),
        ({"resources": [{"name": "a.b/c", "replicas": 2}]}, "an exclusive device has one holder"),
        ({"conf": {"mode": "sometimes"}}, "Invalid enum value 'sometimes'"),
        ({"kubelet": {"registration": 3}, "nonsense": 1}, "$.nonsense: unknown key"),
        ({"metrics_address": "here"}, "metrics_address 'here' is not HOST:PORT"),
    ],
)
def test_a_wrong_configuration_ends_in_one_clear_line(world: World, configuration: dict[str, Any], why: str) -> None:
    path = world.folder / "wrong.yaml"
    path.write_text(json.dumps(configuration))
    environ = {**os.environ, "UB_ROOT": str(world.node.root), "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'proto'}"}
    ended = subprocess.run(
        [*AGENT, "--config", str(path)], env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 2, ended
    assert why in ended.stderr
    assert len([line for line in ended.stderr.splitlines() if not line.startswith("{")]) == 1

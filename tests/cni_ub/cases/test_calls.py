"""D. A call: environment, configuration and arguments, good and bad, and one document as the answer; STATUS."""

import json
from pathlib import Path

import pytest

from tests.cni_ub.node import SimulatedNode, attach

pytestmark = pytest.mark.kernel


def test_h25_one_document_on_stdout_and_logs_elsewhere(node: SimulatedNode, pod: str, tmp_path: Path) -> None:
    started = node.start("ADD", node.conf(logLevel="debug", logFile=str(tmp_path / "log")), pod=pod)
    answer = started.wait()
    assert answer.stdout.endswith(b"}\n")
    assert json.loads(answer.stdout)["interfaces"][0]["name"] == "net1"
    assert answer.stdout.count(b"\n") == 1


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
def test_h34_bad_json_is_a_decoding_failure(node: SimulatedNode, verb: str) -> None:
    for stdin in (b"", b"{", b"[]"):
        assert node.call(verb, stdin, pod="/run/netns/none").error[0] == 6


@pytest.mark.parametrize("odd", [b"NaN", b"-1e999", b'"\\ud800"', b"[" * 150 + b"]" * 150, b"9" * 5000, b'"\xff"'])
def test_h34_what_only_python_reads_is_a_decoding_failure(node: SimulatedNode, pod: str, odd: bytes) -> None:
    before = node.state()
    stdin = json.dumps(node.conf()).encode()[:-1] + b', "more": ' + odd + b"}"
    for verb in ("ADD", "DEL"):
        assert node.call(verb, stdin, pod=pod).error[0] == 6
    assert (node.state(), node.ipam.calls) == (before, [])


def test_h36_a_wrong_environment_is_named(node: SimulatedNode, pod: str) -> None:
    code, message = node.call("ADD", node.conf(), CNI_CONTAINERID=None, CNI_NETNS=None, CNI_IFNAME=None).error
    assert code == 4
    assert all(name in message for name in ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"))
    for wrong in ({"CNI_IFNAME": "x" * 16}, {"CNI_CONTAINERID": "../x"}, {"CNI_COMMAND": "FROB"}):
        assert node.call("ADD", node.conf(), pod=pod, **wrong).error[0] == 4
    attach(node, pod, ifname="abcdefghijklmno")


@pytest.mark.parametrize("name", ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"])
def test_h36_a_variable_that_is_not_utf8_is_named(node: SimulatedNode, pod: str, name: str) -> None:
    before = node.state()
    for verb in ("ADD", "DEL", "CHECK", "GC", "STATUS"):
        code, message = node.call(verb, node.conf(), **{"pod": pod, name: "K=\udcff"}).error
        assert (code, name in message) == (4, True)
    assert (node.state(), node.ipam.calls) == (before, [])


@pytest.mark.parametrize("name", ["all", "default", "%d", "net%d", "a%", ".", "..", "a/b", "a:b", "a b", "x" * 16])
def test_h36_a_name_that_no_interface_can_have_is_refused_first(node: SimulatedNode, pod: str, name: str) -> None:
    before = node.state()
    code, message = node.call("ADD", node.conf(), pod=pod, ifname=name).error
    assert (code, "CNI_IFNAME" in message) == (4, True)
    assert (node.state(), node.ipam.calls) == (before, [])


def test_h36_other_variables_may_hold_anything(node: SimulatedNode, pod: str) -> None:
    odd = {"TRACEPARENT": "00-\udcff-\udcff-01", "HOME": "\udcff", "K8S": "\udcff"}
    assert node.call("ADD", node.conf(), pod=pod, **odd).code == 0
    assert node.call("DEL", node.conf(), pod=pod, **odd).code == 0


@pytest.mark.parametrize("text", ["FOO=a=b;", "K8S_POD_NAME=x;;IgnoreUnknown=true", "=;=", "nonsense", ";"])
def test_h37_cni_args_never_fail_a_call(node: SimulatedNode, pod: str, text: str, tmp_path: Path) -> None:
    ipam = {"type": "host-local", "dataDir": str(tmp_path), "ranges": [[{"subnet": "10.66.0.0/24"}]]}
    assert node.call("ADD", node.conf(ipam=ipam), pod=pod, CNI_ARGS=text).code == 0
    assert node.call("DEL", node.conf(ipam=ipam), pod=pod, CNI_ARGS=text).code == 0


def test_h38_an_old_host_local_serves_a_new_configuration(node: SimulatedNode, pod: str, tmp_path: Path) -> None:
    ipam = {"type": "host-local", "dataDir": str(tmp_path), "ranges": [[{"subnet": "10.66.0.0/24"}]]}
    conf = node.conf(ipam=ipam)
    assert node.call("STATUS", conf, CNI_CONTAINERID="").code == 0
    result = node.call("ADD", conf, pod=pod).document
    assert result["ips"][0]["address"] == "10.66.0.2/24"
    assert node.call("CHECK", {**conf, "prevResult": result}, pod=pod).code == 0
    assert node.call("DEL", conf, pod=pod).code == 0
    assert not (tmp_path / "ubnet/10.66.0.2").exists()


def test_h43_an_unknown_device_is_named(node: SimulatedNode, pod: str) -> None:
    code, message = node.call("ADD", node.conf("urma_99"), pod=pod).error
    assert (code, "urma_99" in message) == (100, True)
    assert node.call("DEL", node.conf("urma_99"), pod=pod).code == 0


def test_h43_a_device_without_its_netdev(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    conf = node.conf(netdev="none")
    del conf["ipam"]
    assert node.call("ADD", conf, pod=pod).document == {"cniVersion": "1.1.0"}
    assert node.exposed()["urma_1"] == 1
    assert node.names_in(pod) == {"lo"}
    assert node.call("DEL", conf, pod=pod).code == 0
    previous = {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": pod}]}
    assert node.call("ADD", {**conf, "prevResult": previous}, pod=pod, ifname="eth0").document == previous
    assert node.call("DEL", {**conf, "prevResult": previous}, pod=pod, ifname="eth0").code == 0
    assert node.state() == before


def test_h39_status_is_quick_and_says_what_is_wrong(node: SimulatedNode, pod: str) -> None:
    unsaid = {"CNI_CONTAINERID": "", "CNI_NETNS": "", "CNI_IFNAME": ""}
    healthy = node.call("STATUS", node.conf(), **unsaid)
    assert (healthy.code, healthy.stdout) == (0, b"")
    node.ipam.order("fail", "STATUS", '{"code": 50, "msg": "pool is empty"}')
    assert node.call("STATUS", node.conf(), **unsaid).error[0] == 50
    node.ipam.obey_no_more()
    for number in range(1, node.devices + 1):
        address = f'{{"cniVersion": "1.0.0", "ips": [{{"address": "10.7{number}.0.5/24"}}]}}'
        node.ipam.order("answer", "ADD", address)
        attach(node, pod, device=f"urma_{number}", ifname=f"net{number}")
    code, message = node.call("STATUS", node.conf(), **unsaid).error
    assert (code, "in use" in message) == (50, True)
    assert node.call("STATUS", node.conf(mode="chained"), **unsaid).code == 0  # it serves pods without a device too


def test_h39_status_on_a_host_without_a_driver(node: SimulatedNode, tmp_path: Path) -> None:
    assert node.call("STATUS", node.conf(), UB_ROOT=str(tmp_path)).error[0] == 50


def test_h39_status_on_a_host_whose_driver_is_gone_from_under_its_pods(
    node: SimulatedNode, pod: str, tmp_path: Path
) -> None:
    attach(node, pod)
    attachments = tmp_path / "var/lib/ub-node/attachments"
    attachments.mkdir(parents=True)
    (attachments / node.record().name).write_bytes(node.record().read_bytes())
    assert node.call("STATUS", node.conf(), UB_ROOT=str(tmp_path)).error[0] == 51


def test_h39_status_writes_nothing(node: SimulatedNode) -> None:
    before = written(node)
    assert node.call("STATUS", node.conf()).code == 0
    assert written(node) == before


def written(node: SimulatedNode) -> dict[Path, int]:
    """When each file of ours was written last; the locks are taken, not written."""
    folders = (node.root / "var/lib/ub-node", node.root / "run/ub-node")
    return {path: path.stat().st_mtime_ns for folder in folders for path in folder.rglob("*")}

"""The executable on a simulated node, case by case as reference/cni.md section 4 lists what goes wrong with others.

The agent does the work; in test_alone.py a part of these cases runs where the executable has to do it itself.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cni_ub.machine import ip
from tests.cni_ub.node import SimulatedNode, wait_for
from ubhost.ledger import Ledger
from ubhost.roots import Roots

pytestmark = pytest.mark.kernel

VERSIONS = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
DEVICES = 4


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedNode]:
    node = SimulatedNode.up(tmp_path_factory.mktemp("node"), DEVICES)
    node.start_agent()
    yield node
    node.down()


@pytest.fixture
def node(shared_node: SimulatedNode) -> Iterator[SimulatedNode]:
    """A node whose devices are all free; whatever a test did, the next one finds them so again."""
    before = shared_node.state()
    yield shared_node
    shared_node.obey_no_more()
    for pod in list(shared_node.pods):
        shared_node.kill_pod(pod)
    shared_node.repair()
    shared_node.obey_no_more()
    wait_for(lambda: shared_node.state() == before)


@pytest.fixture
def pod(node: SimulatedNode) -> str:
    return node.new_pod("pod-1")


def attach(node: SimulatedNode, pod: str, **keys: Any) -> dict[str, Any]:
    where = {key: keys.pop(key) for key in ("container", "ifname") if key in keys}
    answer = node.call("ADD", node.conf(**keys), pod=pod, **where)
    assert answer.code == 0, answer
    document: dict[str, Any] = answer.document
    return document


# A. DEL leniency


@pytest.mark.parametrize("netns", ["", "/run/netns/gone", "/dev/null", "/proc/self/ns/net"])
def test_h1_h2_del_after_the_namespace_is_gone_releases_device_and_addresses(
    node: SimulatedNode, pod: str, netns: str
) -> None:
    before = node.state()
    attach(node, pod)
    node.kill_pod("pod-1")
    deleted = node.call("DEL", node.conf(), pod=netns)
    assert (deleted.code, deleted.stdout) == (0, b"")
    assert node.ipam.calls == ["ADD", "DEL"]
    wait_for(lambda: node.state() == before)


def test_h1_del_without_a_namespace_frees_a_device_whose_pod_still_lives(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    attach(node, pod)
    assert node.call("DEL", node.conf(), pod="").code == 0
    assert node.state() == before
    assert node.names_in(pod) == {"lo"}


def test_h4_del_may_be_repeated(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    attach(node, pod)
    assert [node.call("DEL", node.conf(), pod=pod).code for _ in range(3)] == [0, 0, 0]
    assert node.state() == before


@pytest.mark.parametrize("previous", [{}, None, "torn", [1], {"cniVersion": "7.0"}])
def test_h5_del_does_not_need_prevresult(node: SimulatedNode, pod: str, previous: object) -> None:
    before = node.state()
    attach(node, pod)
    assert node.call("DEL", node.conf(prevResult=previous), pod=pod).code == 0
    assert node.state() == before


def test_h6_del_of_what_was_never_added(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    assert node.ipam.calls == ["DEL"]
    assert node.state() == before


@pytest.mark.parametrize("torn", [b"", b'{"version": 1, "sta', b"\xff\xff", b"null"])
def test_h7_del_with_a_torn_record(node: SimulatedNode, pod: str, torn: bytes) -> None:
    attach(node, pod)
    node.record().write_bytes(torn)
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    assert node.ipam.calls == ["ADD", "DEL"]
    assert (set(node.exposed().values()), node.ledger, node.names_in(pod)) == ({0}, [], {"lo"})


def test_h10_a_failing_ipam_does_not_hold_the_device(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    attach(node, pod)
    node.ipam.order("fail", "DEL", '{"code": 17, "msg": "store is down"}')
    _, message = node.call("DEL", node.conf(), pod=pod).error
    assert "store is down" in message
    assert node.state()[:2] == before[:2]
    node.ipam.obey_no_more()
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    assert node.state() == before


def test_h10_a_missing_ipam_does_not_hold_the_device(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    attach(node, pod)
    _, message = node.call("DEL", node.conf(), pod=pod, CNI_PATH="/nowhere").error
    assert "not found" not in message
    assert node.state()[:2] == before[:2]
    assert node.call("DEL", node.conf(), pod=pod).code == 0


def test_h11_a_failed_reset_leaves_the_record_and_the_rest_is_done(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    attach(node, pod)
    node.fault("unexpose", errno="EIO")
    code, message = node.call("DEL", node.conf(), pod=pod).error
    assert (code, "unexpose" in message) == (5, True)
    assert node.ipam.calls == ["ADD", "DEL"]
    assert node.names_in(pod) == {"lo"}
    assert node.ledger == ["urma_1@c1@net1.json"]
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    assert node.state() == before


# B. ADD atomicity and rollback


def test_h13_a_failing_ipam_undoes_the_add(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    node.ipam.order("fail", "ADD", '{"code": 113, "msg": "exhausted", "details": "10.0.0.0/8"}')
    added = node.call("ADD", node.conf(), pod=pod)
    assert added.error[0] == 113
    assert added.document["details"] == "10.0.0.0/8"
    assert node.ipam.calls == ["ADD", "DEL"]
    assert (node.state(), node.names_in(pod)) == (before, {"lo"})
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    node.ipam.obey_no_more()
    attach(node, node.new_pod("pod-2"), container="c2")


@pytest.mark.parametrize(
    "answer",
    [
        '{"cniVersion": "1.0.0", "ips": []}',
        "not json",
        "",
        '{"cniVersion": "9.0.0", "ips": [{"address": "10.0.0.1/8"}]}',
        '{"cniVersion": "1.0.0", "ips": [null]}',
        '{"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.1"}]}',
    ],
)
def test_h14_a_senseless_ipam_result_undoes_the_add(node: SimulatedNode, pod: str, answer: str) -> None:
    before = node.state()
    node.ipam.order("answer", "ADD", answer)
    assert node.call("ADD", node.conf(), pod=pod).error[0] == 6
    assert node.ipam.calls == ["ADD", "DEL"]
    assert (node.state(), node.names_in(pod)) == (before, {"lo"})


@pytest.mark.parametrize(
    "fault",
    [
        {"operation": "expose", "errno": "EPERM"},
        {"operation": "expose", "errno": "EPERM", "skip": 2},
        {"operation": "move_eid", "errno": "EPERM", "skip": 7},
        {"operation": "move_eid", "errno": "EIO", "when": "after"},
        {"operation": "set_bandwidth", "errno": "EIO"},
    ],
)
def test_h15_a_driver_that_refuses_half_way_undoes_the_add(
    node: SimulatedNode, pod: str, fault: dict[str, Any]
) -> None:
    before = node.state()
    node.fault(**fault)
    assert node.call("ADD", node.conf(qos={"maxMbps": 800}), pod=pod).code == 1
    assert (node.state(), node.names_in(pod)) == (before, {"lo"})
    attach(node, pod)


def test_h17_what_cannot_be_expressed_is_refused_with_nothing_done(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    conf = node.conf(cniVersion="0.2.0", netdev="none")
    del conf["ipam"]
    assert node.call("ADD", conf, pod=pod).error[0] == 7
    assert node.state() == before


def test_h18_a_taken_name_is_refused_with_nothing_done(node: SimulatedNode, pod: str) -> None:
    attach(node, pod)
    during = node.state()
    _, message = node.call("ADD", node.conf("urma_2"), pod=pod, container="c2").error
    assert "net1" in message
    assert node.ipam.calls == ["ADD"]
    assert node.state() == during


def test_h19_a_second_add_is_refused_and_another_interface_works(node: SimulatedNode, pod: str) -> None:
    attach(node, pod)
    during = node.state()
    assert node.call("ADD", node.conf(), pod=pod).code == 1
    assert node.state() == during
    node.ipam.order("answer", "ADD", '{"cniVersion": "1.0.0", "ips": [{"address": "10.78.0.5/24"}]}')
    attach(node, pod, device="urma_2", ifname="net2")
    assert node.names_in(pod) == {"lo", "net1", "net2"}


def test_h20_a_device_named_like_an_interface_of_the_pod(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    ip("-n pod-1 link add ipourma1 type veth peer name eth0")
    attach(node, pod)
    assert node.names_in(pod) == {"lo", "eth0", "ipourma1", "net1"}
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    assert node.state() == before


def test_h21_alternative_names(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    ip("link property add dev ipourma1 altname net1 altname enp7")
    for _ in range(2):
        attach(node, pod)
        ip("-n pod-1 link property add dev net1 altname ipourma1")  # as udev does with an old name
        assert node.call("DEL", node.conf(), pod=pod).code == 0
        altnames = node.netdevs()["ipourma1"][5]
        assert altnames == ("enp7",)
    ip("link property del dev ipourma1 altname enp7")
    assert node.state() == before


def test_h23_a_netdev_that_came_home_late_under_the_pods_name(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    ip("link set ipourma1 down alias ub-cni:ipourma1:")
    ip("link set ipourma1 name net1 up")
    attach(node, pod)
    assert node.names_in(pod) == {"lo", "net1"}
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    wait_for(lambda: node.state() == before)


def test_h25_one_document_on_stdout_and_logs_elsewhere(node: SimulatedNode, pod: str, tmp_path: Path) -> None:
    started = node.start("ADD", node.conf(logLevel="debug", logFile=str(tmp_path / "log")), pod=pod)
    answer = started.wait()
    assert answer.stdout.endswith(b"}\n")
    assert json.loads(answer.stdout)["interfaces"][0]["name"] == "net1"
    assert answer.stdout.count(b"\n") == 1


# C. Concurrency and ownership


def test_h26_two_adds_for_one_device(node: SimulatedNode, pod: str) -> None:
    node.ipam.order("sleep", "ADD", "0.5")
    first = node.start("ADD", node.conf(), pod=pod)
    wait_for(lambda: node.ipam.calls == ["ADD"])
    second = node.call("ADD", node.conf(), pod=node.new_pod("pod-2"), container="c2")
    assert first.wait().code == 0
    assert second.error[0] in (11, 101)
    assert node.ledger == ["urma_1@c1@net1.json"]
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    node.ipam.obey_no_more()
    attach(node, "/run/netns/pod-2", container="c2")


def test_h27_a_late_del_does_not_touch_the_next_owner(node: SimulatedNode, pod: str) -> None:
    attach(node, pod)
    node.kill_pod("pod-1")
    second = node.new_pod("pod-2")
    wait_for(lambda: node.call("ADD", node.conf(), pod=second, container="c2").code == 0)
    during = node.state()
    assert node.call("DEL", node.conf(), pod=pod, container="c1").code == 0
    assert node.state() == during
    assert node.link_in(second, "net1")


def test_h30_a_record_of_another_boot_is_reclaimed(node: SimulatedNode, pod: str) -> None:
    address = node.netdevs()["ipourma1"][1]
    attach(node, pod)
    ledger = Ledger(Roots(node.root))
    (record,) = ledger.records()
    ledger.write(replace(record, boot_id="11111111-2222-3333-4444-555555555555"))
    node.kill_pod("pod-1")
    wait_for(lambda: "ipourma1" in node.netdevs())
    ip(f"link set ipourma1 address {address}")  # as hardware has it after a boot; no record may say so
    attach(node, node.new_pod("pod-2"), container="c2")
    assert node.ledger == ["urma_1@c2@net1.json"]


def test_h32_gc_releases_the_stale_of_its_own_network_only(node: SimulatedNode, pod: str) -> None:
    attach(node, pod)
    node.ipam.order("answer", "ADD", '{"cniVersion": "1.0.0", "ips": [{"address": "10.78.0.5/24"}]}')
    attach(node, pod, device="urma_2", name="other", ifname="net2")
    stale: dict[str, Any] = {"cni.dev/valid-attachments": []}
    legacy: dict[str, Any] = {"cni.dev/attachments": []}
    unsaid = {"CNI_CONTAINERID": "", "CNI_NETNS": "", "CNI_IFNAME": ""}
    assert node.call("GC", node.conf(), **unsaid).code == 0
    assert len(node.ledger) == 2
    collected = node.call("GC", node.conf(**stale), **unsaid)
    assert (collected.code, collected.stdout) == (0, b"")
    assert node.ledger == ["urma_2@c1@net2.json"]
    assert node.ipam.calls.count("GC") == 1
    assert node.call("GC", node.conf(**stale), **unsaid).code == 0
    assert node.call("GC", node.conf(name="other", **legacy), **unsaid).code == 0
    assert node.ledger == []


def test_h32_a_delegate_without_gc_is_left_alone(node: SimulatedNode) -> None:
    node.ipam.order("answer", "VERSION", '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}')
    node.ipam.renew()
    stale: dict[str, Any] = {"cni.dev/valid-attachments": []}
    assert node.call("GC", node.conf(**stale)).code == 0
    assert "GC" not in node.ipam.calls


# D. Input handling and versions


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
def test_h34_bad_json_is_a_decoding_failure(node: SimulatedNode, verb: str) -> None:
    for stdin in (b"", b"{", b"[]"):
        assert node.call(verb, stdin, pod="/run/netns/none").error[0] == 6


def test_h35_versions(node: SimulatedNode, pod: str) -> None:
    answer = node.call("ADD", node.conf(cniVersion="9.9.9"), pod=pod)
    assert answer.error[0] == 1
    assert "1.1.0" in answer.document["details"]
    conf = node.conf()
    del conf["cniVersion"]
    assert node.call("ADD", conf, pod=pod).document["cniVersion"] == "0.1.0"


def test_h36_a_wrong_environment_is_named(node: SimulatedNode, pod: str) -> None:
    code, message = node.call("ADD", node.conf(), CNI_CONTAINERID=None, CNI_NETNS=None, CNI_IFNAME=None).error
    assert code == 4
    assert all(name in message for name in ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"))
    for wrong in ({"CNI_IFNAME": "x" * 16}, {"CNI_CONTAINERID": "../x"}, {"CNI_COMMAND": "FROB"}):
        assert node.call("ADD", node.conf(), pod=pod, **wrong).error[0] == 4
    attach(node, pod, ifname="abcdefghijklmno")


@pytest.mark.parametrize("text", ["FOO=a=b;", "K8S_POD_NAME=x;;IgnoreUnknown=true", "=;=", "nonsense", ";"])
def test_h37_cni_args_never_fail_a_call(node: SimulatedNode, pod: str, text: str, tmp_path: Path) -> None:
    ipam = {"type": "host-local", "dataDir": str(tmp_path), "ranges": [[{"subnet": "10.66.0.0/24"}]]}
    assert node.call("ADD", node.conf(ipam=ipam), pod=pod, CNI_ARGS=text).code == 0
    assert node.call("DEL", node.conf(ipam=ipam), pod=pod, CNI_ARGS=text).code == 0


def test_h38_a_delegate_that_does_not_know_check_is_no_drift(node: SimulatedNode, pod: str) -> None:
    result = attach(node, pod)
    for words in ("unknown CNI_COMMAND: CHECK", "CNI CHECK method is not implemented"):
        node.ipam.order("fail", "CHECK", json.dumps({"code": 4, "msg": words}))
        assert node.call("CHECK", node.conf(prevResult=result), pod=pod).code == 0
    node.ipam.order("fail", "CHECK", '{"code": 17, "msg": "reservation lost"}')
    assert "reservation lost" in node.call("CHECK", node.conf(prevResult=result), pod=pod).error[1]


def test_h38_an_old_host_local_serves_a_new_configuration(node: SimulatedNode, pod: str, tmp_path: Path) -> None:
    ipam = {"type": "host-local", "dataDir": str(tmp_path), "ranges": [[{"subnet": "10.66.0.0/24"}]]}
    conf = node.conf(ipam=ipam)
    assert node.call("STATUS", conf, CNI_CONTAINERID="").code == 0
    result = node.call("ADD", conf, pod=pod).document
    assert result["ips"][0]["address"] == "10.66.0.2/24"
    assert node.call("CHECK", {**conf, "prevResult": result}, pod=pod).code == 0
    assert node.call("DEL", conf, pod=pod).code == 0
    assert not (tmp_path / "ubnet/10.66.0.2").exists()


def test_h39_status_is_quick_and_says_what_is_wrong(node: SimulatedNode, pod: str) -> None:
    unsaid = {"CNI_CONTAINERID": "", "CNI_NETNS": "", "CNI_IFNAME": ""}
    healthy = node.call("STATUS", node.conf(), **unsaid)
    assert (healthy.code, healthy.stdout) == (0, b"")
    node.ipam.order("fail", "STATUS", '{"code": 50, "msg": "pool is empty"}')
    assert node.call("STATUS", node.conf(), **unsaid).error[0] == 50
    node.ipam.obey_no_more()
    for number in range(1, DEVICES + 1):
        address = f'{{"cniVersion": "1.0.0", "ips": [{{"address": "10.7{number}.0.5/24"}}]}}'
        node.ipam.order("answer", "ADD", address)
        attach(node, pod, device=f"urma_{number}", ifname=f"net{number}")
    code, message = node.call("STATUS", node.conf(), **unsaid).error
    assert (code, "in use" in message) == (50, True)
    assert node.call("STATUS", node.conf(mode="chained"), **unsaid).code == 0  # it serves pods without a device too


def test_h39_status_on_a_host_without_a_driver(node: SimulatedNode, tmp_path: Path) -> None:
    assert node.call("STATUS", node.conf(), UB_ROOT=str(tmp_path)).error[0] == 50


DRIFTS = {
    "address": "-n pod-1 addr del 10.77.0.5/24 dev net1",
    "link down": "-n pod-1 link set net1 down",
    "route": "-n pod-1 route del 10.99.0.0/16",
    "link renamed": "-n pod-1 link set net1 name other",
    "mtu": "-n pod-1 link set net1 mtu 1200",
}


@pytest.mark.parametrize("drift", DRIFTS)
def test_h40_check_finds_real_drift(node: SimulatedNode, pod: str, drift: str) -> None:
    result = attach(node, pod)
    assert node.call("CHECK", node.conf(prevResult=result), pod=pod).stdout == b""
    ip(DRIFTS[drift])
    code, message = node.call("CHECK", node.conf(prevResult=result), pod=pod).error
    assert code == 104
    assert "urma_1" in message or "net1" in message


def test_h40_check_finds_a_device_that_was_taken_away(node: SimulatedNode, pod: str) -> None:
    result = attach(node, pod)
    node.take_away("bonding_dev_1", pod)
    code, message = node.call("CHECK", node.conf(prevResult=result), pod=pod).error
    assert (code, "bonding_dev_1" in message) == (104, True)


def test_h40_check_tolerates_what_later_plugins_changed(node: SimulatedNode, pod: str) -> None:
    result = attach(node, pod)
    ip("-n pod-1 link set net1 mtu 1300")
    ip("-n pod-1 route add 10.100.0.0/16 dev net1")
    ip("-n pod-1 addr add 10.77.0.9/24 dev net1")
    ip("-n pod-1 route del 10.99.0.0/16")
    result["interfaces"][0]["mtu"] = 1300
    result["routes"] = [{"dst": "10.100.0.0/16"}]
    assert node.call("CHECK", node.conf(prevResult=result), pod=pod).code == 0


def test_h40_check_compares_namespaces_by_what_they_are(node: SimulatedNode, pod: str) -> None:
    result = attach(node, pod)
    with Path(pod).open("rb") as held:
        same = f"/proc/{os.getpid()}/fd/{held.fileno()}"
        assert node.call("CHECK", node.conf(prevResult=result), pod=same).code == 0
    other = node.new_pod("pod-2")
    assert node.call("CHECK", node.conf(prevResult=result), pod=other).code == 1


def test_h40_check_needs_prevresult_and_an_attachment(node: SimulatedNode, pod: str) -> None:
    assert node.call("CHECK", node.conf(), pod=pod).error[0] == 7
    previous = {"cniVersion": "1.1.0", "interfaces": [{"name": "net1", "sandbox": pod}]}
    assert node.call("CHECK", node.conf(prevResult=previous), pod=pod).error[0] == 3


def test_h41_version_asks_for_nothing(node: SimulatedNode) -> None:
    dummies = {"CNI_NETNS": "dummy", "CNI_IFNAME": "dummy", "CNI_PATH": "dummy", "CNI_CONTAINERID": "dummy"}
    for stdin in (b'{"cniVersion":"0.4.0"}', b"", None):
        answer = node.call("VERSION", stdin, **dummies)
        assert (answer.code, answer.document["supportedVersions"]) == (0, VERSIONS)


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


# E. Runtime, packaging, kernel


def test_h45_links_that_come_and_go_do_not_disturb(node: SimulatedNode, pod: str) -> None:
    script = "while :; do ip link add churn0 type veth peer name churn1; ip link del churn0; done"
    churn = subprocess.Popen(["sh", "-c", script], start_new_session=True)
    try:
        for _ in range(10):
            attach(node, pod)
            assert node.call("DEL", node.conf(), pod=pod).code == 0
    finally:
        os.killpg(churn.pid, signal.SIGKILL)
        churn.wait()
        subprocess.run(["ip", "link", "del", "churn0"], check=False, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_h48_an_add_that_is_killed_while_ipam_works(node: SimulatedNode, pod: str, number: signal.Signals) -> None:
    before = node.state()
    node.ipam.order("sleep", "ADD", "1")
    started = node.start("ADD", node.conf(), pod=pod)
    wait_for(lambda: node.ipam.calls == ["ADD"])
    started.process.send_signal(number)
    answer = started.wait()
    assert answer.code != 0
    node.ipam.obey_no_more()
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    assert (node.state(), node.names_in(pod)) == (before, {"lo"})
    attach(node, node.new_pod("pod-2"), container="c2")


@pytest.mark.parametrize("path", ["/nowhere/log", "/dev/full", "/proc/self/status"])
def test_h50_a_log_that_cannot_be_written_fails_nothing(node: SimulatedNode, pod: str, path: str) -> None:
    assert attach(node, pod, logFile=path, logLevel="debug")


def test_h51_in_a_chain_the_others_are_left_as_they_were(node: SimulatedNode, pod: str) -> None:
    before = node.state()
    ip("-n pod-1 link add eth0 type veth peer name other-end")
    previous: dict[str, Any] = {
        "cniVersion": "1.0.0",
        "interfaces": [
            {"name": "cni0"},
            {"name": "veth12"},
            {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": pod},
        ],
        "ips": [{"address": "10.1.0.2/16", "gateway": "10.1.0.1", "interface": 2}],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dns": {"nameservers": ["10.1.0.10"]},
    }
    conf = node.conf(cniVersion="1.0.0", prevResult=previous)
    added = node.call("ADD", conf, pod=pod, ifname="eth0").document
    assert added["interfaces"][:3] == previous["interfaces"]
    assert (added["interfaces"][3]["name"], added["interfaces"][3]["sandbox"]) == ("ub0", pod)
    assert added["ips"][0] == previous["ips"][0]
    assert added["ips"][1]["interface"] == 3
    assert (added["dns"], added["routes"][0]) == (previous["dns"], previous["routes"][0])
    assert node.call("CHECK", {**conf, "prevResult": added}, pod=pod, ifname="eth0").code == 0
    assert node.call("DEL", {**conf, "prevResult": added}, pod=pod, ifname="eth0").code == 0
    assert node.state() == before


def test_h52_an_attachment_that_nobody_deletes_is_healed_by_the_next_add(node: SimulatedNode, pod: str) -> None:
    attach(node, pod)
    node.kill_pod("pod-1")
    second = node.new_pod("pod-2")
    wait_for(lambda: node.call("ADD", node.conf(), pod=second, container="c2").code == 0)
    assert node.ledger == ["urma_1@c2@net1.json"]


def test_h53_an_ipv6_address_is_usable_at_once(node: SimulatedNode, pod: str) -> None:
    node.ipam.order("answer", "ADD", '{"cniVersion": "1.0.0", "ips": [{"address": "fd00:77::5/64"}]}')
    attach(node, pod)
    shown = subprocess.run(
        ["ip", "-n", "pod-1", "-6", "addr", "show", "dev", "net1", "scope", "global"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "fd00:77::5/64" in shown.stdout
    assert "tentative" not in shown.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_gets_its_own_form_and_every_verb_it_has(node: SimulatedNode, pod: str, version: str) -> None:
    before = node.state()
    result = attach(node, pod, cniVersion=version)
    assert result["cniVersion"] == version
    conf = node.conf(cniVersion=version, prevResult=result)
    checked = node.call("CHECK", conf, pod=pod)
    assert checked.code == 0 if version >= "0.4.0" else checked.error[0] == 1
    status = node.call("STATUS", node.conf(cniVersion=version))
    assert status.code == 0 if version >= "1.1.0" else status.error[0] == 1
    assert node.call("DEL", conf, pod=pod).code == 0
    assert node.state() == before

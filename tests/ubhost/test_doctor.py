"""What the doctor finds: each illness alone, on an otherwise healthy node."""

import stat
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.ubhost.healthy_node import AGENT, CDI_FILE, CSI, FILE, FOUND, HEALTHY, QOS, only
from ubhost.doctor import report
from ubhost.doctor.compatibility import TABLE, parse
from ubhost.doctor.facts import ConfigFile, Daemon, Facts, Node
from ubhost.doctor.findings import Verdict
from ubhost.model import NumaNode, UbEntity, UbHost, UrmaDevice
from ubhost.provider import Device, Kind, Sharing
from ubhost.ubse.generation import Generation


def test_a_healthy_node_is_fit() -> None:
    assert only(HEALTHY) == []
    assert report.document(report.examine(HEALTHY))["fit"] is True


def with_containerd(content: Mapping[str, Any]) -> Facts:
    return replace(HEALTHY, containerd=ConfigFile("/etc/containerd/config.toml", content))


@pytest.mark.parametrize(
    ("facts", "check", "verdict", "words"),
    [
        (replace(HEALTHY, found=None, trouble="no UB host here"), "provider", "problem", "no UB host here"),
        (replace(HEALTHY, has_ubrt=False), "ubrt", "warning", "no UBRT table"),
        (
            replace(HEALTHY, found=replace(FOUND, host=UbHost(True, faults=("bus/ub/cluster: '7' makes no sense",)))),
            "sysfs",
            "warning",
            "cluster: '7' makes no sense",
        ),
        (
            replace(
                HEALTHY,
                found=replace(FOUND, host=UbHost(True, entities=(UbEntity("00001", numa=77),), numa=(NumaNode(0),))),
            ),
            "sysfs",
            "warning",
            "entity 00001 is on NUMA node 77",
        ),
        (replace(HEALTHY, modules=frozenset({"ubcore", "uburma", "ipourma"})), "modules", "problem", "udma ubagg"),
        (replace(HEALTHY, modules=HEALTHY.modules - {"ipourma"}), "ipourma", "warning", "modprobe ipourma"),
        (replace(HEALTHY, found=replace(FOUND, sharing=Sharing.SHARED)), "sharing", "problem", "dev_sharing off` now"),
        (
            replace(HEALTHY, found=replace(FOUND, sharing=Sharing.SHARED), others=3),
            "sharing",
            "problem",
            "at boot, before kubelet and the container runtime start",
        ),
        (replace(HEALTHY, found=replace(FOUND, sharing=None)), "sharing", "warning", "SHOW_SYSTEM"),
        (replace(HEALTHY, found=replace(FOUND, devices=())), "devices", "problem", "lists none"),
        (
            replace(HEALTHY, found=replace(FOUND, devices=(Device("urma_1", (), is_healthy=False),))),
            "health",
            "warning",
            "urma_1",
        ),
        (
            replace(
                HEALTHY,
                found=replace(
                    FOUND,
                    host=UbHost(True, devices=(UrmaDevice("udma2", fault="udma2/guid: 'x' makes no sense"),)),
                    devices=(Device("urma_1", ("udma2",), is_healthy=False),),
                ),
            ),
            "health",
            "warning",
            "udma2/guid: 'x' makes no sense",
        ),
        (replace(HEALTHY, device_nodes=(Node("/dev/ummu"),)), "device-nodes", "problem", "/dev/ummu"),
        (replace(HEALTHY, ubse=Node("/run/ubse/ubse.sock")), "ubse", "warning", "systemctl start ubse"),
        (
            replace(HEALTHY, ubse=Node("/run/ubse/ubse.sock", stat.S_IFSOCK | 0o666)),
            "ubse-socket",
            "problem",
            "chmod 0660 /run/ubse/ubse.sock",
        ),
        (replace(HEALTHY, found=replace(FOUND, notes=("UBSE is tired",))), "ubse", "problem", "UBSE is tired"),
        (replace(HEALTHY, ubse_generation=Generation.NEWER), "ubse-generation", "problem", "another generation: newer"),
        (replace(HEALTHY, has_ubse_group=False), "ubse-group", "warning", "group ubse"),
        (replace(HEALTHY, cgroup="hybrid"), "cgroup", "problem", "unified_cgroup_hierarchy"),
        (replace(HEALTHY, controllers=frozenset({"cpu", "rdma"})), "cgroup", "problem", "cpuset io memory"),
        (
            replace(HEALTHY, kubelet_sockets=(*HEALTHY.kubelet_sockets, Node("/var/lib/kubelet/pod-resources/x"))),
            "kubelet",
            "warning",
            "pod-resources/x",
        ),
        (replace(HEALTHY, kubelet=ConfigFile("c", {"cpuManagerPolicy": "static"})), "cpu-manager", "warning", "none"),
        (replace(HEALTHY, kubelet=ConfigFile("c", trouble="line 3")), "kubelet-config", "warning", "line 3"),
        (with_containerd({}), "nri", "problem", "set disable = false"),
        (with_containerd({"plugins": {"io.containerd.nri.v1.nri": {"disable": False}}}), "cdi-runtime", "problem",
         "enable_cdi = true"),
        (replace(HEALTHY, nri_socket=Node("/var/run/nri/nri.sock")), "nri", "warning", "restart containerd"),
        (replace(HEALTHY, containerd=ConfigFile("c", trouble="line 9")), "containerd", "problem", "line 9"),
        (
            replace(HEALTHY, containerd=None, crio=(ConfigFile("c", {"crio": {"nri": {"enable_nri": False}}}),)),
            "nri",
            "problem",
            "enable_nri = true",
        ),
        (replace(HEALTHY, cdi=(CDI_FILE, ConfigFile("/etc/cdi/x.json", trouble="no"))), "cdi", "problem", "x.json"),
        (replace(HEALTHY, cdi=()), "cdi", "warning", "start ub-agent"),
        (replace(HEALTHY, cni=(ConfigFile("c", {"type": "bridge"}),)), "cni", "warning", "conflist"),
        (replace(HEALTHY, cni=(*HEALTHY.cni, ConfigFile("c", trouble="x"))), "cni-config", "problem", "correct"),
        (replace(HEALTHY, cni_plugin=Node("/opt/cni/bin/ub-cni")), "cni", "problem", "ubnode install"),
        (replace(HEALTHY, cni_plugin=Node("/opt/cni/bin/ub-cni", FILE & ~0o111)), "cni", "problem", "not executable"),
        (replace(HEALTHY, containerd_socket=Node("/run/containerd/containerd.sock")), "containerd", "warning",
         "systemctl start containerd"),
        (replace(HEALTHY, daemons=(Daemon("ub-agent", Node("/run/ub-node/agent.sock"), answers=False),)), "ub-agent",
         "warning", "no socket at /run/ub-node/agent.sock"),
        (replace(HEALTHY, daemons=(replace(AGENT, answers=False),)), "ub-agent", "warning", "nobody answers"),
        (replace(HEALTHY, daemons=(replace(CSI, unit="ub-csi.service"),)), "ub-csi", "problem",
         "systemctl start ub-csi.service"),
        (replace(HEALTHY, daemons=(replace(QOS, answers=False),)), "nri-qos", "warning", "journalctl -u nri-qos"),
        (replace(HEALTHY, is_root=False), "rights", "warning", "sudo ubnode doctor"),
        (replace(HEALTHY, ledger_trouble="Not a directory"), "records", "problem", "Not a directory"),
        (replace(HEALTHY, damaged=("urma_1",)), "records", "warning", "attachments --repair"),
        (replace(HEALTHY, kernel="5.10.0-oe"), "version-kernel", "problem", "5.15 is needed"),
        (replace(HEALTHY, kernel="6.12.1"), "ub-generation", "warning", "OLK-6.6"),
        (replace(HEALTHY, kernel="5.10.0-216.oe2203sp4"), "ub-generation", "warning", "of OLK-5.10"),
        (replace(HEALTHY, versions={"containerd": "containerd 1.6.8"}), "version-containerd", "problem", "1.7"),
    ],
)  # fmt: skip
def test_an_illness_is_found_with_cause_and_next_step(facts: Facts, check: str, verdict: str, words: str) -> None:
    (finding, *_) = [finding for finding in only(facts) if finding.check == check]
    assert finding.verdict.value == verdict
    assert finding.cause
    assert finding.next_step
    assert words in f"{finding.title} {finding.cause} {finding.next_step}"


def test_containerd_2_has_nri_and_cdi_on_unless_told_otherwise() -> None:
    assert only(with_containerd({"version": 3})) == []
    off = {"version": 3, "plugins": {"io.containerd.cri.v1.runtime": {"enable_cdi": False}}}
    assert [finding.check for finding in only(with_containerd(off))] == ["cdi-runtime"]


def test_the_rdma_kind_is_told_its_own_command() -> None:
    found = replace(FOUND, kind=Kind.RDMA, sharing=Sharing.SHARED)
    (finding,) = only(replace(HEALTHY, found=found, modules=frozenset()))
    assert "rdma system set netns exclusive" in finding.next_step


def test_versions_newer_than_what_was_tried_are_noted() -> None:
    facts = replace(HEALTHY, versions={"containerd": "containerd 9.9.9", "kubelet": "?", "crio": "crio version 1.31.2"})
    noted = {f.check: f.title for f in report.examine(facts) if f.verdict is Verdict.NOTE}
    assert "newer than what was tried" in noted["version-containerd"]
    assert noted["version-crio"] == "crio 1.31.2"
    assert "unknown" in noted["version-kubelet"]


def test_the_table_of_versions_names_its_sources() -> None:
    for known in TABLE:
        assert known.source
        assert known.tried is None or known.least < known.tried
    assert parse("Kubernetes v1.31.2") == (1, 31, 2)
    assert parse("none") is None


def test_the_report_has_the_worst_first_and_counts() -> None:
    shown = report.text(report.examine(replace(HEALTHY, cgroup="v1", has_ubse_group=False)))
    assert shown.startswith("problem  cgroups are v1, not v2\n         cause: ")
    assert "\nwarning  there is no group ubse\n" in shown
    assert shown.split("\n")[-1].startswith("1 problem, 1 warning, ")


def test_what_else_would_be_possible_is_noted() -> None:
    noted = {f.check: f.title for f in report.examine(replace(HEALTHY, kinds=("ubcore", "rdma")))}
    assert noted["providers"] == "rdma would be possible, too: ubcore is taken"
    assert "providers" not in {f.check for f in report.examine(replace(HEALTHY, kinds=("ubcore",)))}

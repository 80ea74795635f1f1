"""ADD and DEL on a real kernel, with the driver in memory."""

import errno
import json
from pathlib import Path

import pytest

from cni_ub.host import Stop
from tests.cni_ub.machine import FailsAt, Machine, ip
from ubhost.provider import Sharing
from ubsim.faults import When

pytestmark = pytest.mark.kernel

WITH_IPAM = {"ipam": {"type": "obedient"}}


def test_add_gives_the_pod_its_device_and_del_puts_everything_back(machine: Machine, pod: str) -> None:
    before = machine.state()
    added = machine.call("ADD", machine.conf(**WITH_IPAM), pod=pod)
    link = machine.link_in(pod, "net1")
    assert link
    assert added.document == {
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "net1", "mac": link.mac, "mtu": 1480, "sandbox": pod}],
        "ips": [{"address": "10.77.0.5/24", "gateway": "10.77.0.1", "interface": 0}],
        "routes": [{"dst": "10.99.0.0/16"}],
        "dns": {"nameservers": ["10.77.0.1"]},
    }
    assert link.is_up
    assert machine.members_in(pod) == ("bonding_dev_1", "udma2", "udma3")
    assert machine.call("CHECK", machine.conf(**WITH_IPAM, prevResult=added.document), pod=pod).stdout == b""

    assert machine.call("DEL", machine.conf(**WITH_IPAM), pod=pod).stdout == b""
    assert machine.state() == before
    assert machine.members_in(pod) == ()
    assert machine.ipam.calls == ["ADD", "VERSION", "CHECK", "DEL"]


def test_the_ledger_names_the_device_nodes_that_the_pods_programs_open(machine: Machine, pod: str) -> None:
    """nri-qos puts them into the pod's containers."""
    assert machine.call("ADD", machine.conf(), pod=pod).code == 0
    (record,) = machine.host.ledger.of_container("c1")
    assert record.nodes == ("uburma/bonding_dev_1", "uburma/udma2", "uburma/udma3", "ummu")


def test_without_ipam_the_netdev_keeps_the_addresses_it_had(machine: Machine, pod: str) -> None:
    before = machine.state()
    added = machine.call("ADD", machine.conf(), pod=pod)
    assert added.document["ips"] == [{"address": "4245:4944::1/64", "interface": 0}]
    assert machine.call("DEL", machine.conf(), pod=pod).code == 0
    assert machine.state() == before


def test_a_configured_mtu_is_set_reported_and_taken_back(machine: Machine, pod: str) -> None:
    before = machine.state()
    added = machine.call("ADD", machine.conf(mtu=1400), pod=pod)
    assert added.document["interfaces"][0]["mtu"] == 1400
    assert machine.call("DEL", machine.conf(), pod=pod).code == 0
    assert machine.state() == before


def test_in_a_chain_what_was_there_stays_and_ours_comes_last(machine: Machine, pod: str) -> None:
    previous = {
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "br0"}, {"name": "veth1"}, {"name": "eth0", "sandbox": pod, "own": "key"}],
        "ips": [{"address": "10.1.0.2/16", "interface": 2}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}],
        "dns": {"nameservers": ["10.1.0.10"]},
    }
    ip("-n pod-1 link add eth0 type veth peer name eth0-peer")
    added = machine.call("ADD", machine.conf(prevResult=previous), pod=pod, ifname="eth0").document
    assert added["interfaces"][:3] == previous["interfaces"]
    assert added["interfaces"][3]["name"] == "ub0"
    assert added["ips"] == [*previous["ips"], {"address": "4245:4944::1/64", "interface": 3}]
    assert (added["routes"], added["dns"]) == (previous["routes"], previous["dns"])
    assert machine.call("CHECK", machine.conf(prevResult=added), pod=pod, ifname="eth0").code == 0
    assert machine.call("DEL", machine.conf(), pod=pod, ifname="eth0").code == 0
    assert machine.names_in(pod) == {"lo", "eth0", "eth0-peer"}


def test_a_chained_pod_without_a_device_passes_through_untouched(machine: Machine, pod: str) -> None:
    before = machine.state()
    previous = {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": pod}], "dns": {"domain": "a"}}
    conf = {key: value for key, value in machine.conf(prevResult=previous).items() if key != "deviceID"}
    assert machine.call("ADD", conf, pod=pod, ifname="eth0").document == previous
    assert machine.call("CHECK", conf, pod=pod, ifname="eth0").code == 0
    assert machine.call("DEL", conf, pod=pod, ifname="eth0").code == 0
    assert machine.state() == before


MORE_STEPS_THAN_AN_ADD_HAS = 20


@pytest.mark.parametrize("failing", range(MORE_STEPS_THAN_AN_ADD_HAS))
def test_an_add_that_fails_at_any_step_leaves_nothing(machine: Machine, pod: str, failing: int) -> None:
    before = machine.state()
    machine.stop = fault = FailsAt(failing)
    added = machine.call("ADD", machine.conf(**WITH_IPAM, mtu=1400, qos={"maxMbps": 800}), pod=pod)
    if not fault.has_fired:
        assert failing >= 12  # 3 kernel devices and their EIDs, and what the link needs
        assert added.code == 0
        return
    assert added.error == (5, "refused on purpose")
    assert machine.state() == before
    assert machine.names_in(pod) == {"lo"}
    assert machine.members_in(pod) == ()
    assert machine.ipam.calls in ([], ["ADD", "DEL"], ["DEL"])

    machine.stop = Stop()
    assert machine.call("DEL", machine.conf(**WITH_IPAM), pod=pod).code == 0
    assert machine.call("ADD", machine.conf(), pod=machine.new_pod("pod-2"), container="c2").code == 0


@pytest.mark.parametrize("operation", ["expose", "move_eid", "set_bandwidth"])
@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
def test_a_driver_that_fails_leaves_nothing(machine: Machine, pod: str, operation: str, when: When) -> None:
    before = machine.state()
    machine.provider.fail(operation, errno.EIO, when=when)
    added = machine.call("ADD", machine.conf(qos={"maxMbps": 800}), pod=pod)
    assert added.code == 1
    assert machine.state() == before
    assert machine.members_in(pod) == ()


def test_a_name_that_is_taken_in_the_pod_is_refused_before_anything_changes(machine: Machine, pod: str) -> None:
    assert machine.call("ADD", machine.conf(), pod=pod).code == 0
    before = machine.state()
    code, message = machine.call("ADD", machine.conf(deviceID="urma_2", **WITH_IPAM), pod=pod, container="c2").error
    assert (code, message) == (4, "CNI_IFNAME net1 exists in the pod already")
    assert machine.state() == before
    assert machine.ipam.calls == []


def test_shared_devices_are_refused_unless_sharing_was_asked_for(machine: Machine, pod: str) -> None:
    machine.provider.set_sharing(Sharing.SHARED)
    code, message = machine.call("ADD", machine.conf(), pod=pod).error
    assert code == 103
    assert "dev_sharing off" in message
    assert machine.call("ADD", machine.conf(isolation="shared"), pod=pod).code == 0


def test_the_hosts_own_namespace_is_refused(machine: Machine) -> None:
    assert machine.call("ADD", machine.conf(), pod="/proc/self/ns/net").error[0] == 8


@pytest.mark.parametrize("path", ["/run/netns/absent", "/dev/null", "/run"])
def test_what_is_no_namespace_is_refused_by_add_and_nothing_to_del(machine: Machine, path: str) -> None:
    code, message = machine.call("ADD", machine.conf(), pod=path).error
    assert (code, "CNI_NETNS" in message) == (4, True)
    assert machine.call("DEL", machine.conf(**WITH_IPAM), pod=path).code == 0
    assert machine.ipam.calls == ["DEL"]


def test_a_result_that_cannot_be_expressed_is_refused_before_anything_changes(machine: Machine, pod: str) -> None:
    ip("addr flush dev ipourma1")
    before = machine.state()
    code, _ = machine.call("ADD", machine.conf(cniVersion="0.2.0"), pod=pod).error
    assert code == 7
    assert machine.state() == before


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"])
def test_every_version_gets_its_own_form(machine: Machine, pod: str, version: str) -> None:
    document = machine.call("ADD", machine.conf(cniVersion=version, **WITH_IPAM), pod=pod).document
    assert document["cniVersion"] == version
    if version < "0.3.0":
        assert document["ip4"] == {"ip": "10.77.0.5/24", "gateway": "10.77.0.1", "routes": [{"dst": "10.99.0.0/16"}]}
        assert "interfaces" not in document
    elif version < "1.0.0":
        assert document["ips"][0]["version"] == "4"
        assert set(document["interfaces"][0]) == {"name", "mac", "sandbox"}
    else:
        assert "version" not in document["ips"][0]
    assert machine.call("DEL", machine.conf(cniVersion=version, **WITH_IPAM), pod=pod).code == 0


def test_the_delegate_gets_the_whole_configuration_and_a_clean_environment(machine: Machine, pod: str) -> None:
    conf = machine.conf(**WITH_IPAM, other={"key": [1]})
    frozen = {"LD_LIBRARY_PATH": "/bundle", "_PYI_APPLICATION_HOME_DIR": "/bundle", "MINE": "kept"}
    assert machine.call("ADD", conf, pod=pod, **frozen).code == 0
    assert json.loads((machine.ipam.folder / "stdin-ADD").read_text()) == conf
    environ = dict(line.partition("=")[::2] for line in (machine.ipam.folder / "environ-ADD").read_text().splitlines())
    assert environ["MINE"] == "kept"
    assert (environ["CNI_NETNS"], environ["CNI_COMMAND"]) == (pod, "ADD")
    assert not {"LD_LIBRARY_PATH", "_PYI_APPLICATION_HOME_DIR"} & environ.keys()


def test_a_failed_delegate_is_reported_in_its_own_words(machine: Machine, pod: str) -> None:
    before = machine.state()
    machine.ipam.order("fail", "ADD", '{"code": 113, "msg": "no free address"}')
    assert machine.call("ADD", machine.conf(**WITH_IPAM), pod=pod).error == (
        113,
        "IPAM plugin obedient ADD: no free address",
    )
    assert machine.ipam.calls == ["ADD", "DEL"]
    assert machine.state() == before


def test_state_that_cannot_be_written_stops_add_before_anything_changes(machine: Machine, pod: str) -> None:
    before = machine.state()
    Path(machine.root / "var").write_text("in the way")
    assert machine.call("ADD", machine.conf(), pod=pod).error[0] == 5
    assert machine.state() == before

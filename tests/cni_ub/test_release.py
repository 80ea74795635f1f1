"""DEL, repair and GC, whatever the pod, the driver and earlier calls have done."""

import ctypes
import errno
import os
import platform
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from cni_ub import reconcile
from cni_ub.reconcile import Condition
from tests.cni_ub.machine import Machine, ip
from ubhost.kernel.rtmessages import IFINFO, IFLA_XDP, IFLA_XDP_FD, IFLA_XDP_FLAGS, NLA_F_NESTED, S32, U32, XDP_MODES
from ubhost.kernel.rtnl import RTM_NEWLINK, Rtnl
from ubhost.netlink import NLM_F_ACK, attribute
from ubhost.record import State
from ubsim.faults import When

pytestmark = pytest.mark.kernel

BPF = {"x86_64": 321, "aarch64": 280}  # the number of bpf(2)
WITH_IPAM = {"ipam": {"type": "obedient"}}


@pytest.fixture
def attached(machine: Machine, pod: str) -> tuple[object, ...]:
    """What the machine was like before net1 was attached to the pod."""
    before = machine.state()
    assert machine.call("ADD", machine.conf(**WITH_IPAM), pod=pod).code == 0
    return before


def delete(machine: Machine, pod: str, **conf: object) -> int:
    return machine.call("DEL", machine.conf(**WITH_IPAM, **conf), pod=pod).code


@pytest.mark.parametrize(
    "mischief",
    [
        "-n pod-1 link set net1 name mine",
        "-n pod-1 link set net1 alias mine",
        "-n pod-1 link set net1 address 02:00:00:00:00:99",
        "-n pod-1 link set net1 mtu 1300 txqueuelen 5 down",
        "-n pod-1 addr flush dev net1",
        "-n pod-1 link property add dev net1 altname ipourma1",
        "-n pod-1 link property add dev net1 altname other",
        "-n pod-1 link property add dev net1 altname ipourma2",
        "-n pod-1 link set net1 promisc on group 77",
        "-n pod-1 link set net1 allmulticast on",
    ],
)
def test_whatever_the_pod_does_to_its_link_it_comes_home_as_it_was(
    machine: Machine, pod: str, attached: tuple[object, ...], mischief: str
) -> None:
    ip(mischief)
    assert delete(machine, pod) == 0
    assert machine.state() == attached
    assert machine.names_in(pod) == {"lo"}


def test_a_bpf_program_that_the_pod_left_on_its_link_stays_behind(
    machine: Machine, pod: str, attached: tuple[object, ...]
) -> None:
    with Path(pod).open("rb") as netns, Rtnl(netns.fileno()) as rtnl:
        link = rtnl.link("net1")
        assert link
        program = load_xdp_pass()
        what = attribute(IFLA_XDP_FD, S32.pack(program)) + attribute(IFLA_XDP_FLAGS, U32.pack(XDP_MODES[0]))
        body = IFINFO.pack(0, 0, link.index, 0, 0) + attribute(IFLA_XDP | NLA_F_NESTED, what)
        rtnl.ask(RTM_NEWLINK, NLM_F_ACK, body)
        os.close(program)
        changed = rtnl.link("net1")
        assert changed
        assert changed.has_xdp
    assert delete(machine, pod) == 0
    assert machine.state() == attached


def load_xdp_pass() -> int:
    """Load a program that lets every packet pass (r0 = 2; exit) and return its descriptor. Source: bpf(2)."""
    code = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xB7, 0, 0, 2, 0x95, 0, 0, 0))
    licence = ctypes.create_string_buffer(b"GPL")
    what = struct.pack("=IIQQIIQ", 6, 2, ctypes.addressof(code), ctypes.addressof(licence), 0, 0, 0)
    fd: int = ctypes.CDLL(None, use_errno=True).syscall(BPF[platform.machine()], 5, what, len(what))
    assert fd >= 0, os.strerror(ctypes.get_errno())
    return fd


def test_a_link_that_the_pod_hid_in_a_namespace_of_its_own_comes_home(
    machine: Machine, pod: str, attached: tuple[object, ...]
) -> None:
    machine.new_pod("hidden")
    ip("-n pod-1 link set net1 netns hidden name secret")
    assert delete(machine, pod) == 0
    assert machine.state() == attached


def forge(pod: str, name: str, alias: str, index: int = 0, mac: str = "02:00:00:00:00:66") -> None:
    """Make a link as a pod with CAP_NET_ADMIN can: of any name, alias, number and hardware address."""
    number = f"index {index}" if index else ""
    ip(f"-n {pod} link add {name} {number} address {mac} type veth peer name other-end")
    ip(f"-n {pod} link set {name} alias {alias}")


@pytest.mark.parametrize("alias", ["ub-cni:eth7:x", "ub-cni:ipourma2:x", "ub-cni:a/b:", "ub-cni:ipourma1:"])
@pytest.mark.parametrize("is_missing", [False, True])
def test_a_mark_that_a_pod_made_moves_no_link_and_frees_no_device(
    machine: Machine, pod: str, alias: str, *, is_missing: bool
) -> None:
    if is_missing:
        ip("link del wire1")
    before = machine.state()
    forge("pod-1", "eth0", alias)
    for _ in range(2):
        assert machine.call("DEL", machine.conf(mode="chained"), pod=pod, ifname="eth0").code == 0
        assert machine.state() == before
        assert machine.names_in(pod) == {"lo", "eth0", "other-end"}


def test_a_link_that_the_pod_put_in_place_of_ours_stays_and_ours_comes_home(
    machine: Machine, pod: str, attached: tuple[object, ...]
) -> None:
    ours = machine.link_in(pod, "net1")
    assert ours
    machine.new_pod("hidden")
    ip("-n pod-1 link set net1 netns hidden")
    forge("pod-1", "net1", ours.alias, ours.index, ours.mac)
    assert delete(machine, pod) == 0
    assert machine.state() == attached
    assert machine.names_in(pod) == {"lo", "net1", "other-end"}


def test_while_ours_is_nowhere_another_link_is_not_taken_for_it(
    machine: Machine, pod: str, attached: tuple[object, ...]
) -> None:
    ours = machine.link_in(pod, "net1")
    assert ours
    ip("-n pod-1 link del net1")
    forge("pod-1", "net1", ours.alias, ours.index, ours.mac)
    code, message = machine.call("DEL", machine.conf(**WITH_IPAM), pod=pod).error
    assert (code, "another link" in message, "not found" in message) == (5, True, False)
    assert machine.ledger == ["urma_1@c1@net1.json"]
    assert machine.names_in(pod) == {"lo", "net1", "other-end"}
    machine.plug_netdev(1)
    assert delete(machine, pod) == 0
    assert machine.ledger == []


def test_a_marked_netdev_that_came_home_without_a_record_is_given_its_name_back(
    machine: Machine, pod: str, attached: tuple[object, ...]
) -> None:
    (record,) = (machine.root / "var/lib/ub-node/attachments").iterdir()
    record.unlink()
    machine.bring_home("pod-1", "net1")
    machine.kill_pod("pod-1")
    second = machine.new_pod("pod-2")
    assert machine.call("ADD", machine.conf(), pod=second, container="c2").code == 0
    assert machine.names_in(second) == {"lo", "net1"}
    assert machine.call("DEL", machine.conf(), pod=second, container="c2").code == 0
    assert machine.link_mac(1)


def test_a_second_and_a_third_del_are_no_errors(machine: Machine, pod: str, attached: tuple[object, ...]) -> None:
    assert [delete(machine, pod) for _ in range(3)] == [0, 0, 0]
    assert machine.state() == attached


@pytest.mark.parametrize("previous", [None, {}, "nonsense", {"ips": [None]}])
def test_del_never_needs_prevresult(machine: Machine, pod: str, attached: tuple[object, ...], previous: object) -> None:
    assert delete(machine, pod, prevResult=previous) == 0
    assert machine.state() == attached


def test_del_of_what_was_never_added_releases_addresses_and_touches_no_device(
    machine: Machine, pod: str, attached: tuple[object, ...]
) -> None:
    during = machine.state()
    assert machine.call("DEL", machine.conf(**WITH_IPAM), pod=pod, container="other").code == 0
    assert machine.state() == during
    assert machine.ipam.calls == ["ADD", "DEL"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 99}', '{"version": 1, "state": "odd"}'])
def test_del_works_with_a_torn_record(machine: Machine, pod: str, attached: tuple[object, ...], content: str) -> None:
    (record,) = (machine.root / "var/lib/ub-node/attachments").iterdir()
    record.write_text(content)
    assert delete(machine, pod) == 0
    assert machine.ledger == []
    assert machine.members_in(pod) == ()
    with_names = [link.name for link in machine.state()[0]]
    assert with_names == ["ipourma1", "ipourma2"]
    assert machine.state()[0][0].alias == "native-1"


@pytest.mark.parametrize("name", ["net1", "stolen"])
def test_del_works_with_a_lost_record(machine: Machine, pod: str, attached: tuple[object, ...], name: str) -> None:
    (record,) = (machine.root / "var/lib/ub-node/attachments").iterdir()
    record.unlink()
    ip(f"-n pod-1 link set net1 down name {name}")
    assert delete(machine, pod) == 0
    assert machine.members_in(pod) == ()
    assert machine.names_in(pod) == {"lo"}
    assert machine.state()[0][0].alias == "native-1"


@pytest.mark.parametrize("operation", ["unexpose", "exposed"])
def test_a_driver_that_fails_leaves_a_record_for_another_try(
    machine: Machine, pod: str, attached: tuple[object, ...], operation: str
) -> None:
    machine.provider.fail(operation, errno.EIO, count=1)
    code, message = machine.call("DEL", machine.conf(**WITH_IPAM), pod=pod).error
    assert code in (5, 102)
    assert "not found" not in message.lower()
    assert machine.names_in(pod) == {"lo"}  # the link is home all the same
    assert machine.ipam.calls == ["ADD", "DEL"]
    assert len(machine.ledger) == 1
    assert delete(machine, pod) == 0
    assert machine.state() == attached


def test_a_delegate_that_fails_does_not_hold_the_device_back(
    machine: Machine, pod: str, attached: tuple[object, ...]
) -> None:
    machine.ipam.order("fail", "DEL", '{"code": 5, "msg": "address not found: No such file or directory"}')
    _, message = machine.call("DEL", machine.conf(**WITH_IPAM), pod=pod).error
    assert message == "IPAM plugin obedient DEL: address absent: missing file"  # words that no runtime swallows
    assert machine.state()[:3] == attached[:3]
    machine.ipam.obey_no_more()
    assert delete(machine, pod) == 0
    assert machine.state() == attached


def test_a_late_del_touches_nothing_of_the_next_owner(machine: Machine, pod: str, attached: tuple[object, ...]) -> None:
    machine.bring_home("pod-1", "net1")
    machine.kill_pod("pod-1")
    second = machine.new_pod("pod-2")
    assert machine.call("ADD", machine.conf(**WITH_IPAM), pod=second, container="c2").code == 0
    during = machine.state()
    assert delete(machine, pod) == 0
    assert machine.state() == during
    assert machine.members_in(second) == ("bonding_dev_1", "udma2", "udma3")
    assert machine.call("DEL", machine.conf(**WITH_IPAM), pod=second, container="c2").code == 0
    assert machine.state()[1:] == attached[1:]


def test_a_device_of_a_living_pod_is_not_given_to_another(
    machine: Machine, pod: str, attached: tuple[object, ...]
) -> None:
    code, message = machine.call("ADD", machine.conf(), pod=machine.new_pod("pod-2"), container="c2").error
    assert code == 101
    assert "c1" in message
    assert "net1" in message


def test_a_second_add_of_an_attachment_is_refused_and_the_first_stays(
    machine: Machine, pod: str, attached: tuple[object, ...]
) -> None:
    during = machine.state()
    assert machine.call("ADD", machine.conf(**WITH_IPAM), pod=pod).error[0] == 101
    assert machine.state() == during
    assert machine.call("ADD", machine.conf(deviceID="urma_2"), pod=pod, ifname="net2").code == 0


def test_gc_releases_what_is_not_valid_and_leaves_other_networks(
    machine: Machine, pod: str, attached: tuple[object, ...]
) -> None:
    other = machine.conf(name="other", deviceID="urma_2")
    assert machine.call("ADD", other, pod=pod, ifname="net2").code == 0
    valid = {"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "net1"}]}
    for keep in ({}, valid, {"cni.dev/attachments": valid["cni.dev/valid-attachments"]}):
        assert machine.call("GC", machine.conf(**WITH_IPAM, **keep), pod="").code == 0
        assert len(machine.ledger) == 2
    assert machine.call("GC", machine.conf(**WITH_IPAM, **{"cni.dev/valid-attachments": []}), pod="").code == 0
    assert machine.ledger == ["urma_2@c1@net2.json"]
    assert machine.names_in(pod) == {"lo", "net2"}
    assert machine.ipam.calls.count("DEL") == 1
    assert machine.call("GC", machine.conf(**WITH_IPAM, **{"cni.dev/valid-attachments": []}), pod="").code == 0


def test_a_reboot_frees_every_device(machine: Machine, pod: str, attached: tuple[object, ...]) -> None:
    (record,) = machine.host.ledger.records()
    machine.host.ledger.write(replace(record, boot_id="of another boot"))
    machine.bring_home("pod-1", "net1")
    ip("link set net1 name ipourma1 alias native-1 address 02:00:00:00:00:77 mtu 1480")  # a boot makes it anew
    during = machine.state()[0]
    assert delete(machine, pod) == 0
    assert machine.state()[0] == during  # what the record says is of another link
    machine.host.ledger.write(replace(record, boot_id="of another boot"))
    assert machine.call("ADD", machine.conf(), pod=machine.new_pod("pod-2"), container="c2").code == 0
    assert machine.ledger == ["urma_1@c2@net1.json"]


def test_repair_releases_the_dead_and_leaves_the_living(machine: Machine, pod: str) -> None:
    before = machine.state()
    assert machine.call("ADD", machine.conf(**WITH_IPAM), pod=pod).code == 0
    living = machine.new_pod("pod-2")
    assert machine.call("ADD", machine.conf(deviceID="urma_2"), pod=living, container="c2").code == 0
    machine.bring_home("pod-1", "net1")
    machine.kill_pod("pod-1")
    found = {finding.record.device: finding for finding in reconcile.repair(machine.host)}
    assert found["urma_1"].condition is Condition.ORPHANED
    assert found["urma_1"].problems == ()
    assert found["urma_2"].condition is Condition.HEALTHY
    assert machine.ledger == ["urma_2@c2@net1.json"]
    assert machine.ipam.calls == ["ADD", "DEL"]
    assert machine.call("DEL", machine.conf(), pod=living, container="c2").code == 0
    assert machine.state() == before


@pytest.mark.parametrize("state", [State.ATTACHING, State.DETACHING])
def test_repair_finishes_what_was_begun(machine: Machine, pod: str, attached: tuple[object, ...], state: State) -> None:
    (record,) = machine.host.ledger.records()
    machine.host.ledger.write(replace(record, state=state))
    with machine.host.ledger.device_lock("urma_1", 0):
        assert [finding.condition for finding in reconcile.repair(machine.host)] == [Condition.AT_WORK]
    assert [finding.problems for finding in reconcile.repair(machine.host)] == [()]
    assert machine.state() == attached


def test_a_netdev_that_comes_home_late_is_waited_for(machine: Machine, pod: str, attached: tuple[object, ...]) -> None:
    machine.kill_pod("pod-1")  # its veth dies with it, as no hardware does
    assert delete(machine, pod) == 0
    assert machine.ledger == ["urma_1@c1@net1.json"]
    code, message = machine.call("ADD", machine.conf(), pod=machine.new_pod("pod-2"), container="c2").error
    assert (code, "not come back" in message) == (11, True)
    machine.plug_netdev(1)
    assert machine.call("ADD", machine.conf(), pod="/run/netns/pod-2", container="c2").code == 0
    assert machine.ledger == ["urma_1@c2@net1.json"]


def test_a_limit_is_lifted_exactly(machine: Machine, pod: str) -> None:
    before = machine.state()
    limited = machine.conf(qos={"minMbps": 80, "maxMbps": 800})
    assert machine.call("ADD", limited, pod=pod).code == 0
    assert machine.provider.bandwidth("urma_1").max_mbps == 800
    machine.provider.fail("set_bandwidth", errno.EIO, when=When.BEFORE)
    assert machine.call("DEL", limited, pod=pod).code == 1
    assert machine.call("DEL", limited, pod=pod).code == 0
    assert machine.provider.bandwidth("urma_1").max_mbps == 0
    assert machine.state() == before

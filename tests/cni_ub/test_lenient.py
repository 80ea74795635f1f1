"""A configuration that went wrong after ADD must not hold a device; ADD is as strict as ever."""

from typing import Any

import pytest

from tests.cni_ub.machine import Machine

pytestmark = pytest.mark.kernel

RATES = ("ingressRate", "ingressBurst", "egressRate", "egressBurst", "IngressRate")
NO_RATES: tuple[object, ...] = ("fast", -1, 0.5, True, [], 1 << 64)
NO_MBPS: tuple[object, ...] = (1 << 32, -8, 8.0, True, "8")
NO_PLUGINS: tuple[object, ...] = ("", ".", "..", "../obedient", "/bin/sh", "obedient/", "a\0b", 5, [])
WRONG: list[dict[str, Any]] = [
    {"mtu": "1500"},
    {"mtu": 1},
    {"mode": "sideways"},
    {"netdev": 3},
    {"isolation": "none"},
    {"logLevel": "loud"},
    {"logFile": 7},
    {"dns": "10.0.0.1"},
    {"deviceID": 5},
    {"qos": []},
    {"qos": {"serviceLevel": 99}},
    {"zeroCopy": {"sharedMemory": "much"}},
    {"runtimeConfig": "none"},
    {"runtimeConfig": {"deviceID": "urma_2"}},  # and deviceID is urma_1: H42
    *({"runtimeConfig": {"bandwidth": {key: value}}} for key in RATES for value in NO_RATES),
    *({"runtimeConfig": {"bandwidth": {key: 7}}} for key in ("ingressRate", "egressRate")),
    *({"qos": {key: value}} for key in ("minMbps", "maxMbps") for value in NO_MBPS),
    {"qos": {"minMbps": 800}},
    {"qos": {"minMbps": 800, "maxMbps": 8}},
    {"zeroCopy": {"sharedMemory": "9" * 5000}},
    {"dns": {"nameservers": "10.0.0.1"}},
    {"dns": {"search": [5]}},
    *({"ipam": {"type": kind}} for kind in NO_PLUGINS),
    {"ipam": []},
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong)[:70])
def test_add_refuses_what_del_and_gc_need_not_know(machine: Machine, pod: str, wrong: dict[str, Any]) -> None:
    before = machine.state()
    good = machine.conf(ipam={"type": "obedient"})
    assert machine.call("ADD", good | wrong, pod=pod).error[0] in (2, 7)
    assert machine.state() == before
    bad = good | wrong | {"cni.dev/valid-attachments": []}
    for verb in ("DEL", "GC"):
        assert machine.call("ADD", good, pod=pod).code == 0
        assert machine.call(verb, bad, pod=pod if verb == "DEL" else "").code == 0
        assert machine.state() == before
    assert machine.ipam.calls.count("DEL") == 2


@pytest.mark.parametrize("ipam", ["obedient", {"type": 5}, []], ids=str)
def test_del_finds_the_ipam_plugin_in_its_record_when_the_configuration_does_not_tell(
    machine: Machine, pod: str, ipam: object
) -> None:
    before = machine.state()
    assert machine.call("ADD", machine.conf(ipam={"type": "obedient"}), pod=pod).code == 0
    assert machine.call("DEL", machine.conf(ipam=ipam), pod=pod).code == 0
    assert machine.ipam.calls == ["ADD", "DEL"]
    assert machine.state() == before


def test_gc_still_judges_its_list(machine: Machine, pod: str) -> None:
    assert machine.call("ADD", machine.conf(), pod=pod).code == 0
    assert machine.call("GC", machine.conf(mtu="1500", **{"cni.dev/valid-attachments": ["c1"]})).error[0] == 7
    assert len(machine.ledger) == 1


def test_status_of_an_entry_that_every_pod_passes_does_not_wait_for_a_free_device(machine: Machine, pod: str) -> None:
    entry = {"cniVersion": "1.1.0", "name": "ubnet", "type": "ub-cni"}
    for number in (1, 2):
        conf = machine.conf(deviceID=f"urma_{number}")
        assert machine.call("ADD", conf, pod=pod, ifname=f"net{number}").code == 0
    for passes in ({}, {"mode": "auto"}, {"mode": "chained"}):
        assert machine.call("STATUS", entry | passes).code == 0
    for waits in ({"mode": "main"}, {"deviceID": "urma_1"}, {"ipam": {"type": "obedient"}}):
        code, message = machine.call("STATUS", entry | waits).error
        assert (code, "in use" in message) == (50, True)

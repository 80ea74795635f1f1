"""Whatever stands at any place of a configuration, of prevResult or of IPAM's answer: one document, a proper code.

And an ADD that is refused leaves nothing, and a DEL with the same configuration takes back what was not.
"""

import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tests.cni_ub.machine import Answer, Machine

pytestmark = pytest.mark.kernel

CONF: dict[str, Any] = {
    "cniVersion": "1.1.0",
    "name": "ubnet",
    "type": "ub-cni",
    "deviceID": "urma_1",
    "mode": "auto",
    "netdev": "auto",
    "isolation": "exclusive",
    "mtu": 1400,
    "qos": {"minMbps": 8, "maxMbps": 80, "serviceLevel": 3, "priority": 2},
    "runtimeConfig": {
        "bandwidth": {"ingressRate": 10**6, "ingressBurst": 10**5, "egressRate": 10**6, "egressBurst": 2**32 - 1},
        "CNIDeviceInfoFile": "/nowhere",
    },
    "zeroCopy": {"sockets": "off", "sharedMemory": "0"},
    "ipam": {"type": "obedient"},
    "dns": {"nameservers": ["10.0.0.1"], "domain": "d", "search": [], "options": []},
    "logLevel": "info",
    "logFile": "",
    "prevResult": {
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "mtu": 1500, "sandbox": "/x"}],
        "ips": [{"address": "10.1.0.2/16", "gateway": "10.1.0.1", "interface": 0}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1400, "priority": 1, "table": 7}],
        "dns": {"nameservers": ["10.0.0.1"]},
    },
}
ANSWER: dict[str, Any] = {
    "cniVersion": "1.0.0",
    "ips": [{"address": "10.77.0.5/24", "gateway": "10.77.0.1"}],
    "routes": [{"dst": "10.99.0.0/16", "gw": "10.77.0.1", "mtu": 1400, "advmss": 900, "table": 254, "scope": 0}],
    "dns": {"nameservers": ["10.77.0.1"], "search": ["x"]},
}
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**32, 2**64, 10**400, 0.5, float("nan"), float("inf")),
    *("", "x", "../x", "a\0b", "\ud800", "x" * 5000, "9" * 5000, "net1", "fe80::1%eth0/64", "::1/128", "0.0.0.0/0"),
    *([], {}, [None], [[]], {"": None}, {"address": "10.0.0.1/24"}),
)
Place = tuple[str | int, ...]


def places(value: object, at: Place = ()) -> Iterator[Place]:
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*at, key))


def some_odd(place: Place) -> list[Any]:
    """Return a few odd values for a place, always the same: a device that travels takes its time."""
    return Random(str(place)).sample(ODD, 6)


def with_odd(document: dict[str, Any], place: Place, odd: object) -> dict[str, Any]:
    copied = copy.deepcopy(document)
    found: Any = copied
    for key in place[:-1]:
        found = found[key]
    found[place[-1]] = copy.deepcopy(odd)
    return copied


def code_of(answer: Answer) -> int:
    """Return the CNI code of an answer, 0 for a success; the document is one that every decoder takes."""

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} in {answer.stdout!r}")

    document = json.loads(answer.stdout, parse_constant=refuse) if answer.stdout else {}
    assert bool(answer.code) == ("code" in document), answer
    return int(document.get("code", 0))


def try_out(machine: Machine, pod: str, conf: dict[str, Any]) -> None:
    """ADD and DEL with a configuration."""
    before, stdin = machine.state(), json.dumps(conf).encode()
    added = code_of(machine.call("ADD", stdin, pod=pod))
    assert added < 200, conf
    if added:
        assert machine.state() == before, conf
    deleted = code_of(machine.call("DEL", stdin, pod=pod))
    assert deleted == 0 or (added and deleted in (1, 6, 7)), conf
    assert (machine.state(), machine.names_in(pod)) == (before, {"lo"}), conf


@pytest.mark.parametrize("place", list(places(CONF)), ids=lambda place: ".".join(map(str, place)))
def test_odd_values_in_the_configuration(machine: Machine, pod: str, place: Place) -> None:
    for odd in some_odd(place):
        try_out(machine, pod, with_odd(CONF, place, odd))


@pytest.mark.parametrize("place", list(places(ANSWER)), ids=lambda place: ".".join(map(str, place)))
def test_odd_values_in_the_answer_of_ipam(machine: Machine, pod: str, place: Place) -> None:
    for odd in some_odd(place):
        machine.ipam.order("answer", "ADD", json.dumps(with_odd(ANSWER, place, odd)))
        try_out(machine, pod, {**CONF, "prevResult": None})


def test_odd_values_in_the_lists_of_gc_release_nothing_or_are_good(machine: Machine, pod: str) -> None:
    good = {"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "net1"}]}
    conf = machine.conf()
    assert machine.call("ADD", conf, pod=pod).code == 0
    before = machine.state()
    for place in places(good):
        for odd in ODD:
            if odd == [] or (isinstance(odd, str) and odd and len(place) == 3):  # a good list, without ours
                continue
            assert code_of(machine.call("GC", json.dumps({**conf, **with_odd(good, place, odd)}).encode())) in (0, 6, 7)
            assert machine.state() == before

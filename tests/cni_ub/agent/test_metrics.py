"""Metrics and probes over HTTP."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cni_ub.agent.holders import PodDevice
from cni_ub.agent.metrics import BUCKETS, Calls, Exposition
from cni_ub.agent.service import Service
from cni_ub.agent.webserver import WebServer
from tests.cni_ub.agent.host import Host
from tests.cni_ub.agent.test_nodefeatures import snapshot_of
from ubhost.errors import HostFault
from ubhost.ledger import Ledger
from ubhost.record import Record

Labels = frozenset[tuple[str, str]]
PODS = (PodDevice("urma_3", "unifiedbus.com/ub_net_device", "default", "db", "main"),)


class Part:
    """A part of the agent that is ready, or not."""

    def __init__(self, name: str, why: str | None = None) -> None:
        self.name = name
        self.why = why

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def ready(self) -> str | None:
        return self.why


@contextmanager
def serving(host: Host, parts: list[Service], calls: Calls) -> Iterator[str]:
    snapshot = snapshot_of(host)
    server = WebServer("127.0.0.1:0", Exposition(lambda: snapshot, lambda: PODS, lambda: parts, calls), lambda: parts)
    server.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.stop()


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(text: str) -> dict[tuple[str, Labels], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(found: dict[tuple[str, Labels], float], name: str, **labels: str) -> list[float]:
    return [value for (n, have), value in found.items() if n == name and labels.items() <= set(have)]


def test_devices_ports_owners_and_eids_are_told(host: Host) -> None:
    host.set_port("udma2", 1)
    Ledger(host.roots, boot_id="b").write(Record("urma_2", "c1", "net1", pod="default/web"))
    with serving(host, [], Calls()) as url:
        _, text = get(f"{url}/metrics")
    found = samples(text)
    assert of(found, "ub_device_healthy", device="urma_1") == [0]
    assert of(found, "ub_device_healthy", device="urma_2") == [1]
    assert of(found, "ub_device_fault", device="urma_1", fault="port 0 of udma2 is DOWN") == [1]
    assert of(found, "ub_device_owner", device="urma_2", pod_namespace="default", pod="web", interface="net1") == [1]
    assert of(found, "ub_device_owner", device="urma_1") == []
    assert of(found, "ub_port_state", urma_device="udma2", state="DOWN") == [1]
    assert of(found, "ub_port_state", urma_device="udma2", state="ACTIVE") == [0]
    assert of(found, "ub_port_mtu_bytes", urma_device="udma2") == [4096]
    assert len(of(found, "ub_eid_info", device="urma_1")) == 21
    assert of(found, "ub_device_info", device="urma_1", level="stand-in", numa="1") == [1]
    assert of(found, "ub_device_allocated", device="urma_3", pod_namespace="default", pod="db") == [1]
    assert of(found, "process_resident_memory_bytes")[0] > 0


def test_cni_calls_are_counted_by_verb_and_outcome(host: Host) -> None:
    calls = Calls()
    for seconds in (0.001, 0.03, 100):
        calls("ADD", True, seconds)
    calls("ADD", False, 0.03)
    with serving(host, [], calls) as url:
        found = samples(get(f"{url}/metrics")[1])
    good = {"verb": "ADD", "outcome": "success"}
    assert of(found, "ub_cni_call_seconds_count", **good) == [3]
    assert of(found, "ub_cni_call_seconds_sum", **good) == [pytest.approx(100.031)]
    assert of(found, "ub_cni_call_seconds_bucket", le="0.005", **good) == [1]
    assert of(found, "ub_cni_call_seconds_bucket", le="60", **good) == [2]
    assert of(found, "ub_cni_call_seconds_bucket", le="+Inf", **good) == [3]
    assert of(found, "ub_cni_call_seconds_count", verb="ADD", outcome="error") == [1]
    assert len(of(found, "ub_cni_call_seconds_bucket", **good)) == len(BUCKETS) + 1


def test_the_agent_is_ready_when_all_its_parts_are_and_says_which_is_not(host: Host) -> None:
    kubelet = Part("kubelet", "kubelet does not listen")
    with serving(host, [Part("devices"), kubelet], Calls()) as url:
        assert get(f"{url}/healthz") == (200, "ok\n")
        status, text = get(f"{url}/readyz")
        assert (status, json.loads(text)) == (503, {"ready": False, "why": {"kubelet": "kubelet does not listen"}})
        assert of(samples(get(f"{url}/metrics")[1]), "ub_agent_ready", part="kubelet") == [0]
        kubelet.why = None
        assert get(f"{url}/readyz")[0] == 200
        assert get(f"{url}/etc/passwd")[0] == 404


def test_an_address_that_is_taken_is_named(host: Host) -> None:
    with serving(host, [], Calls()) as url:
        address = url.removeprefix("http://")
        second = WebServer(address, Exposition(lambda: snapshot_of(host), tuple, list, Calls()), list)
        with pytest.raises(HostFault, match=f"cannot serve metrics at {address}: Address already in use"):
            second.start()

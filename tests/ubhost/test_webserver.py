"""Metrics and probes of a daemon."""

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric

from ubhost.address import host_and_port
from ubhost.errors import HostFault
from ubhost.webserver import WebServer, is_ready


class Devices:
    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("ub_devices", "Devices", value=2)


def get(server: WebServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def why() -> list[str | None]:
    return [None]


@pytest.fixture
def server(why: list[str | None]) -> Iterator[WebServer]:
    server = WebServer("127.0.0.1:0", [Devices()], lambda: is_ready(why[0]))
    server.start()
    yield server
    server.stop()


def test_metrics_are_those_of_the_collectors_and_of_the_process(server: WebServer) -> None:
    status, text = get(server, "/metrics")
    assert status == 200
    assert "ub_devices 2.0" in text
    assert "process_resident_memory_bytes" in text


def test_a_daemon_that_is_not_ready_lives_and_says_why(server: WebServer, why: list[str | None]) -> None:
    assert get(server, "/readyz") == (200, "ok\n")
    why[0] = "no runtime"
    assert get(server, "/readyz") == (503, "no runtime\n")
    assert get(server, "/healthz") == (200, "ok\n")


@pytest.mark.parametrize("caller", ["127.0.0.1", "[::1]"])
def test_without_a_host_callers_of_ipv4_and_ipv6_are_answered(caller: str) -> None:
    """Nodes of a cluster may have addresses of one kind only, and probes come to those."""
    server = WebServer(":0", [], lambda: is_ready(None))
    server.start()
    try:
        if caller.startswith("[") and not socket.has_dualstack_ipv6():
            caller = "127.0.0.1"  # a kernel without IPv6: nobody calls from there
        with urllib.request.urlopen(f"http://{caller}:{server.port}/healthz", timeout=60) as answer:
            assert answer.read() == b"ok\n"
    finally:
        server.stop()


def test_other_paths_name_the_ones_there_are(server: WebServer) -> None:
    status, text = get(server, "/")
    assert status == 404
    assert "/readyz" in text


def test_a_taken_address_is_named(server: WebServer) -> None:
    address = f"127.0.0.1:{server.port}"
    with pytest.raises(HostFault, match=address):
        WebServer(address, [], lambda: is_ready(None)).start()


def test_it_can_be_stopped_and_started_again(server: WebServer) -> None:
    server.stop()
    assert server.port == 0
    server.start()
    assert get(server, "/healthz")[0] == 200


def test_addresses_may_leave_the_host_out_and_may_be_ipv6() -> None:
    assert host_and_port(":9478") == ("", 9478)
    assert host_and_port("[::1]:9478") == ("::1", 9478)


@pytest.mark.parametrize(
    "address", ["", "9478", "localhost", "localhost:", "localhost:http", "localhost:65536", ":\u0662"]
)
def test_what_is_not_host_and_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        host_and_port(address)

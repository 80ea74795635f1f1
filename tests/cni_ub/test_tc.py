"""Our traffic control against tc's own view of it, and against what really passes."""

import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cni_ub.machine import ip
from ubhost.kernel import netns, tc
from ubhost.kernel.rtnl import Rtnl
from ubhost.model import Rate

pytestmark = pytest.mark.kernel

MBIT = 1_000_000


@pytest.fixture
def pair() -> Iterator[tuple[Rtnl, int]]:
    """A link in the namespace ``there`` with 10.70.0.2, whose other end is here with 10.70.0.1."""
    ip("netns add there")
    ip("link add here0 type veth peer name net1 netns there")
    ip("addr add 10.70.0.1/24 dev here0")
    ip("link set here0 up")
    ip("-n there addr add 10.70.0.2/24 dev net1")
    ip("-n there link set net1 up")
    with Path("/run/netns/there").open("rb") as there, Rtnl(there.fileno()) as rtnl:
        link = rtnl.link("net1")
        assert link
        yield rtnl, link.index
    ip("link del here0")  # a namespace dies in its own time, and its links with it
    ip("netns del there")


def shown(*command: str) -> Any:
    return json.loads(subprocess.run(["tc", "-n", "there", "-j", *command], check=True, capture_output=True).stdout)


@pytest.mark.parametrize(
    "rate", [Rate(8 * MBIT, 65536), Rate(1000 * MBIT, 1 << 20), Rate(100_000 * MBIT, 1 << 24), Rate(64_000, 20_000)]
)
def test_a_limit_is_what_tc_shows_and_what_we_read_back(pair: tuple[Rtnl, int], rate: Rate) -> None:
    rtnl, index = pair
    assert tc.limit_of(rtnl, index) is None
    tc.limit(rtnl, index, rate)
    (root,) = (q for q in shown("qdisc", "show", "dev", "net1") if q.get("root"))
    assert root["kind"] == "tbf"
    assert root["options"]["rate"] == rate.bytes_a_second
    assert root["options"]["burst"] == pytest.approx(rate.burst, rel=0.02)
    found = tc.limit_of(rtnl, index)
    assert found
    assert found.bits_a_second == rate.bits_a_second
    assert found.burst == pytest.approx(rate.burst, rel=0.02)
    tc.limit(rtnl, index, Rate(16 * MBIT, 65536))  # replaces
    assert tc.limit_of(rtnl, index) == Rate(16 * MBIT, 65536)
    tc.unlimit(rtnl, index)
    tc.unlimit(rtnl, index)
    assert tc.limit_of(rtnl, index) is None


def test_received_traffic_is_led_through_an_ifb(pair: tuple[Rtnl, int]) -> None:
    rtnl, index = pair
    rtnl.add_ifb("ubifb")
    through = rtnl.link("ubifb")
    assert through
    assert through.is_up
    tc.redirect(rtnl, index, through.index)
    (filter_,) = (f for f in shown("filter", "show", "dev", "net1", "ingress") if "actions" in f.get("options", {}))
    action = filter_["options"]["actions"][0]
    assert (action["kind"], action["mirred_action"], action["to_dev"]) == ("mirred", "redirect", "ubifb")
    subprocess.run(["ping", "-c", "1", "-W", "2", "10.70.0.2"], check=True, stdout=subprocess.DEVNULL)
    assert int(shown("-s", "qdisc", "show", "dev", "ubifb")[0]["bytes"]) >= 0
    tc.unredirect(rtnl, index)
    tc.unredirect(rtnl, index)
    assert shown("filter", "show", "dev", "net1", "ingress") == []


def measure(fd: int, *, to_pod: bool, burst: int, seconds: float = 2) -> float:
    """Return the bits a second of a TCP stream to or from the namespace, beside the burst that passes at once.

    Counted from before the first byte: what waits in buffers while we have no CPU is never more than the rate allows.
    """
    with netns.visiting(fd):
        inside = socket.create_server(("10.70.0.2", 0))
    begin = time.monotonic()
    outside = socket.create_connection(inside.getsockname())
    accepted, _ = inside.accept()
    sender, receiver = (outside, accepted) if to_pod else (accepted, outside)
    stop = threading.Event()

    def send() -> None:
        block = bytes(1 << 16)
        while not stop.is_set():
            try:
                sender.send(block)
            except OSError:
                return

    thread = threading.Thread(target=send)
    thread.start()
    received = 0
    while (elapsed := time.monotonic() - begin) < seconds:
        received += len(receiver.recv(1 << 16))
    stop.set()
    for connection in (inside, outside, accepted):
        connection.close()
    thread.join()
    return (received - burst) * 8 / elapsed


@pytest.mark.parametrize("to_pod", [False, True])
def test_the_measured_rate_is_within_ten_percent_of_the_asked_one(pair: tuple[Rtnl, int], to_pod: bool) -> None:
    rtnl, index = pair
    rate = Rate(40 * MBIT, 64 << 10)
    if to_pod:
        rtnl.add_ifb("ubifb")
        through = rtnl.link("ubifb")
        assert through
        tc.limit(rtnl, through.index, rate)
        tc.redirect(rtnl, index, through.index)
    else:
        tc.limit(rtnl, index, rate)
    fd = netns.open_netns("/run/netns/there")
    with open(fd, "rb") as there:  # noqa: PTH123 - closes it
        best = 0.0
        for _ in range(5):  # a busy machine may not even send that fast; never may it send faster
            measured = measure(there.fileno(), to_pod=to_pod, burst=rate.burst)
            assert measured < 44 * MBIT
            best = max(best, measured)
            if best > 36 * MBIT:
                break
        assert best > 36 * MBIT

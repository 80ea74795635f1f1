"""An unmodified TCP program in a pod runs over SMC-R, because its network says ``zeroCopy: smc``.

Between two kernels on soft-RoCE. Level: soft device; no figure here is one of UB or of RDMA hardware.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.__main__ import INSIDE_ENV
from e2e.machine import Machine
from e2e.outside.conftest import ADDRESSES, wait_for

SENT = "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts"
LIBRARY = "LD_PRELOAD=/run/ub/lib/libsmc-preload.so"
FIRST = ("10.9.0.100", "10.9.0.150")
PROGRAM = ("python3", "-m", "e2e.inside.zerocopy")
PATIENCE_S = 300.0
Pair = tuple[Machine, Machine]


@pytest.fixture(scope="module")
def fabric(pair: Pair) -> Iterator[Pair]:
    """Two nodes with one network; the first has a pod in it."""
    for node, first in zip(pair, FIRST, strict=True):
        node.shell(f"mkdir -p /tmp/results; python3 -m e2e.inside.zerocopy prepare {first}", env=INSIDE_ENV)
    anchor = pair[0].start_command(*PROGRAM, "anchor", env=INSIDE_ENV)
    wait_for(lambda: b"anchored" in anchor.output["stdout"], "the first node has a pod", PATIENCE_S, anchor)
    yield pair
    for node in pair:
        node.fetch("/tmp/results", node.console.parent / f"{node.spec.name}-results")
        node.fetch("/var/log", node.console.parent / f"{node.spec.name}-log")


def send(node: Machine, port: int) -> dict[str, Any]:
    """Run the client's pod; return what it had, and what SMC diag said of its one connection."""
    done = node.run(*PROGRAM, "send", ADDRESSES[0], str(port), env=INSIDE_ENV, timeout_s=PATIENCE_S)
    assert done.exit == 0, done.stderr.decode(errors="replace")[-3000:]
    found: dict[str, Any] = json.loads(done.text.splitlines()[-1])
    return found


def is_listening(node: Machine, port: int) -> bool:
    """Whether somebody does; an SMC socket listens by a TCP socket of the kernel's."""
    return f":{port} " in node.shell("ss -ltn")


def packets(node: Machine) -> int:
    return int(node.shell(SENT))


def test_a_tcp_program_in_a_pod_runs_over_smc_r(fabric: Pair) -> None:
    before = packets(fabric[1])
    server = fabric[0].start_command(*PROGRAM, "serve", "7000", env=INSIDE_ENV)
    wait_for(lambda: is_listening(fabric[0], 7000), "the server listens", PATIENCE_S, server)
    found = send(fabric[1], 7000)
    assert LIBRARY in found["environ"], "nri-qos gave the container what ub-cni had laid out"
    assert "smc" in found["told"]["attachments"][0]["ways"]
    assert [(c["mode"], c["reason"]) for c in found["connections"]] == [("SMC-R", "")], "no fallback"
    assert json.loads(server.wait(PATIENCE_S).text)["mbps"] > 0
    assert packets(fabric[1]) - before > 1000, "and the RDMA device carried it"


def test_it_falls_back_to_tcp_when_the_peer_has_no_smc(fabric: Pair) -> None:
    before = packets(fabric[1])
    server = fabric[0].start_command("python3", "-m", "e2e.inside.stream", "receive", "7001", "3", env=INSIDE_ENV)
    wait_for(lambda: is_listening(fabric[0], 7001), "the server listens", PATIENCE_S, server)
    found = send(fabric[1], 7001)
    assert [(c["mode"], c["reason"]) for c in found["connections"]] == [("TCP", "the peer has no SMC")]
    assert json.loads(server.wait(PATIENCE_S).text)["mbps"] > 0, "and it works all the same"
    assert packets(fabric[1]) - before < 100, "without RDMA"


def test_nothing_of_smc_is_left_when_the_pods_are_gone(fabric: Pair) -> None:
    """The user EID of the network went with the node's last pod."""
    assert fabric[1].shell("ls -A /run/ub-node/zerocopy/records") == ""
    assert "UB-" not in fabric[1].shell("python3 -m e2e.inside.smc eids", env=INSIDE_ENV)
    assert "UB-" in fabric[0].shell("python3 -m e2e.inside.smc eids", env=INSIDE_ENV)

"""Two real kernels: soft-RoCE between them and memory that both load and store.

Level: soft device. None of its figures are UB figures.
"""

import json
import re

import pytest

from e2e.__main__ import INSIDE_ENV
from e2e.machine import Machine
from e2e.outside.conftest import ADDRESSES

SENT = "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts"
LINKS = "(ip -brief link show; rdma link show)"
Pair = tuple[Machine, Machine]


def test_the_nodes_see_one_another(pair: Pair) -> None:
    assert "1 received" in pair[1].shell(f"ping -c1 -W5 {ADDRESSES[0]}")


def test_a_verbs_program_moves_data_between_them(pair: Pair) -> None:
    server = pair[0].start_command("ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "100")
    client = pair[1].shell(
        f"for i in $(seq 20); do ibv_rc_pingpong -d rxe0 -g 1 -n 100 {ADDRESSES[0]} && exit 0; sleep 0.5; done; exit 1"
    )
    assert server.wait(30).exit == 0
    assert "819200 bytes" in client  # 100 x 4096 bytes each way
    counters = pair[0].shell("cat /sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts")
    assert int(counters) >= 100


def test_our_plugins_find_the_soft_device_and_call_it_one(pair: Pair) -> None:
    found = json.loads(pair[0].shell("/mnt/payload/ub-node/ubnode show --json"))
    assert (found["provider"], found["level"]) == ("rdma", "soft device")


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
def test_a_soft_device_cannot_be_a_pods_own_and_ub_cni_says_why(pair: Pair, mode: str) -> None:
    """By design of the kernel: soft-RoCE does not move between namespaces. Nothing may be half-done."""
    node = pair[1]
    node.shell(
        f"""
        ip link add soft type veth peer name peer
        ip link set soft up
        ip link set peer up
        rdma link add rxe1 type rxe netdev soft
        rdma system set netns {mode}
        ip netns add refused
        {LINKS} > /tmp/before
        """
    )
    conf = {"cniVersion": "1.1.0", "name": "rdma", "type": "ub-cni", "deviceID": "rxe1"}
    attachment = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "refused",
        "CNI_NETNS": "/run/netns/refused",
        "CNI_IFNAME": "net1",
        "CNI_PATH": "/opt/cni/bin",
    }
    done = node.run("/mnt/payload/ub-node/ub-cni", env=attachment, stdin=json.dumps(conf).encode())
    after = node.shell(f"{LINKS} | diff /tmp/before - && echo same || true")
    node.shell("ip netns delete refused; rdma system set netns shared; ip link delete soft")
    error = json.loads(done.stdout)
    assert (done.exit, error["code"]) in ((1, 102), (1, 103)), error
    assert "rxe1" in error["msg"]
    assert after == "same\n"


def test_a_tcp_stream_runs_over_smc_r(pair: Pair) -> None:
    for node in pair:
        node.shell("modprobe -a smc smc_diag && python3 -m e2e.inside.smc eid UB-NODE-TEST", env=INSIDE_ENV)
    before = int(pair[1].shell(SENT))
    server = pair[0].start_command("python3", "-m", "e2e.inside.smc", "serve", "5000", env=INSIDE_ENV)
    pair[0].shell("for i in $(seq 100); do ss --smc -l 2>/dev/null | grep -q LISTEN && break; sleep 0.1; done")
    client = pair[1].shell(f"python3 -m e2e.inside.smc send {ADDRESSES[0]} 5000 4194304", env=INSIDE_ENV)
    assert json.loads(client)["mode"] == "SMC-R", "no fallback to TCP"
    assert json.loads(server.wait(60).text) == {"received": 4194304}
    assert int(pair[1].shell(SENT)) - before > 4194304 // 4096, "and the RDMA device carried it"


def test_what_one_node_stores_in_shared_memory_the_other_loads(pair: Pair) -> None:
    script = "import mmap, os; m = mmap.mmap(os.open('/dev/pmem0', os.O_RDWR), 4096); "
    pair[0].shell(f"python3 -c \"{script} m[:5] = b'hello'; m.flush()\"")
    seen = pair[1].shell(f'python3 -c "{script} print(m[:5])"')
    assert re.search("hello", seen)

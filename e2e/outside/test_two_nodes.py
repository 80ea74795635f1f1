"""Two real kernels: soft-RoCE between them and memory that both load and store.

Level: soft device. None of its figures are UB figures.
"""

import re

from e2e.machine import Machine
from e2e.outside.conftest import ADDRESSES

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


def test_what_one_node_stores_in_shared_memory_the_other_loads(pair: Pair) -> None:
    script = "import mmap, os; m = mmap.mmap(os.open('/dev/pmem0', os.O_RDWR), 4096); "
    pair[0].shell(f"python3 -c \"{script} m[:5] = b'hello'; m.flush()\"")
    seen = pair[1].shell(f'python3 -c "{script} print(m[:5])"')
    assert re.search("hello", seen)

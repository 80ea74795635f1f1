"""Guests for the tests that run here: a pair of them, joined by a wire and by memory that both can load and store."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e import image
from e2e.__main__ import OUTPUT, parts
from e2e.channel import Running
from e2e.machine import Link, Machine, Spec
from e2e.payload import payload

# Minutes each, more on a machine that others use: not part of every run, and not of CI's. `make drills`,
# `make e2e-long` and `make e2e-kubernetes` run them.
LONG = {
    "test_borrowed_memory.py": "UB_E2E_LONG",
    "test_close_to_open.py": "UB_E2E_LONG",
    "test_drills.py": "UB_E2E_LONG",
    "test_kubernetes.py": "UB_E2E_KUBERNETES",
    "test_shared_dax.py": "UB_E2E_LONG",
    "test_shared_volumes.py": "UB_E2E_LONG",
}
collect_ignore = [file for file, asked in LONG.items() if not os.environ.get(asked)]
SHARED_MEMORY = 128 << 20
ADDRESSES = ("10.9.0.1", "10.9.0.2")


@pytest.fixture(scope="session")
def guest() -> image.Image:
    return image.ensure(print)


@pytest.fixture(scope="session")
def disk() -> Iterator[Path]:
    with payload(*parts()) as path:
        yield path


@pytest.fixture(scope="module")
def pair(guest: image.Image, disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Machine]]:
    """Two nodes, booted at the same time from one image; ``eth0`` of each has its address and a soft-RoCE device."""
    folder = tmp_path_factory.mktemp("pair")
    memory = folder / "pmem"
    with memory.open("wb") as file:
        file.truncate(SHARED_MEMORY)
    ends = [folder / "wire0", folder / "wire1"]
    nodes = tuple(
        Machine(
            Spec(
                guest,
                disk,
                name=f"node{number}",
                link=Link(ends[number], ends[1 - number], mac=f"52:54:00:00:00:0{number + 1}"),
                shared_memory=memory,
            ),
            OUTPUT / "pair",
        )
        for number in range(2)
    )
    try:
        for node in nodes:
            node.start()
        for node, address in zip(nodes, ADDRESSES, strict=True):
            node.wait_ready()
            join(node, address)
        yield nodes[0], nodes[1]
    finally:
        for node in nodes:
            node.stop()


def join(node: Machine, address: str) -> None:
    """Give a node of a pair its address and its soft-RoCE device, which end with its boot."""
    node.shell(f"ip address add {address}/24 dev eth0; modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0")


def wait_for(holds: Callable[[], bool], what: str, timeout_s: float = 300, by: Running | None = None) -> None:
    """Wait until ``holds()``; fail with ``what`` did not happen, or at once if the command that does it ended."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if by and not by.exit.empty():
            pytest.fail(f"{what}: the command has ended: {bytes(by.output['stderr']).decode(errors='replace')[-3000:]}")
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.5)

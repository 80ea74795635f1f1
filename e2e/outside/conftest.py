"""Guests for the tests that run here: a pair of them, joined by a wire and by memory that both can load and store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import image
from e2e.__main__ import OUTPUT, parts
from e2e.machine import Link, Machine, Spec
from e2e.payload import payload

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
            node.shell(
                f"ip address add {address}/24 dev eth0; modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0"
            )
        yield nodes[0], nodes[1]
    finally:
        for node in nodes:
            node.stop()

"""The plugin that we give to others serves our own tests, too."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ubhost.kernel.netns import open_netns
from ubhost.provider import Provider
from ubhost.providers import choose
from ubhost.ubcore.client import Ubcore
from ubhost.ubcore.transport import SimulatorChannel
from ubhost.ubse.client import Ubse
from ubsim import named_netns
from ubsim.handles import NodeHandle
from ubsim.pytest_plugin import pytest_configure, supernode, ub_node

NETNS = Path("/run/netns")

__all__ = ["pytest_configure", "supernode", "ub_node"]


@pytest.fixture
def new_pod() -> Iterator[Callable[[str], int]]:
    """Make a network namespace with this name; returns a descriptor of it."""
    descriptors: list[int] = []
    paths: list[Path] = []

    def make(name: str) -> int:
        named_netns.make(NETNS / name)
        paths.append(NETNS / name)
        descriptors.append(open_netns(str(NETNS / name)))
        return descriptors[-1]

    yield make
    for descriptor in descriptors:
        with_closed(descriptor)
    for path in paths:
        named_netns.remove(path)


def with_closed(descriptor: int) -> None:
    if Path(f"/proc/self/fd/{descriptor}").exists():
        os.close(descriptor)


@pytest.fixture
def ubcore(ub_node: NodeHandle) -> Ubcore:
    return Ubcore(lambda: SimulatorChannel(ub_node.roots.simulator / "kernel.sock"))


@pytest.fixture
def ubse(ub_node: NodeHandle) -> Ubse:
    return Ubse(ub_node.roots.ubse_socket)


@pytest.fixture
def provider(ub_node: NodeHandle) -> Provider:
    return choose(ub_node.roots, "sim")


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    yield
    assert threading.active_count() == 1

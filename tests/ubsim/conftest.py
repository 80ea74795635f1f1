"""The plugin that we give to others serves our own tests, too."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ubhost.kernel.netns import open_netns
from ubsim import named_netns
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

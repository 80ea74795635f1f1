"""Hosts and kubelets for the tests of the agent's parts."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cni_ub.agent.host import Host
from ubsim.kubelet import Kubelet

MEMORY = Path("/dev/shm")  # a thousand small files are made in no time there


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="ub-", dir=MEMORY if MEMORY.is_dir() else tmp_path) as folder:
        yield Host(Path(folder) / "n")


@pytest.fixture
def kubelet(host: Host) -> Iterator[Kubelet]:
    """A kubelet of the host that has not started yet."""
    made = Kubelet(host.kubelet)
    yield made
    made.stop()

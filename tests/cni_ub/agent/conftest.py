"""Hosts and kubelets for the tests of the agent's parts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cni_ub.agent.host import Host
from ubsim.kubelet import Kubelet


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "n")


@pytest.fixture
def kubelet(host: Host) -> Iterator[Kubelet]:
    """A kubelet of the host that has not started yet."""
    made = Kubelet(host.kubelet)
    yield made
    made.stop()

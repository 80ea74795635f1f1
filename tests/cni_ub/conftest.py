from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cni_ub.machine import Machine
from ubhost.provider import Sharing


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine with two free devices."""
    built = Machine.build(tmp_path)
    yield built
    built.close()


@pytest.fixture
def pod(machine: Machine) -> str:
    """The path of a pod's network namespace."""
    return machine.new_pod("pod-1")


@pytest.fixture(params=Sharing)
def host(request: pytest.FixtureRequest, machine: Machine) -> Machine:
    """A machine of either kind: one that shows its devices to every namespace, and one that does not."""
    machine.provider.set_sharing(request.param)
    return machine

"""The node that the tests run on: container images, a runtime without left-overs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.inside.cri import Runtime, import_images

# It needs a cluster to join: e2e/outside/test_kubernetes.py has one.
collect_ignore = [] if Path("/run/cluster.json").exists() else ["test_kubernetes.py"]


@pytest.fixture(scope="session")
def containerd() -> Runtime:
    import_images()
    runtime = Runtime()
    runtime.wait_until_ready()
    return runtime


@pytest.fixture
def runtime(containerd: Runtime) -> Iterator[Runtime]:
    """The runtime; the pods that a test leaves are removed after it."""
    yield containerd
    containerd.remove_all()

"""The node that the tests run on: container images, a runtime without left-overs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.inside.cri import Runtime, import_images

# The first needs a cluster to join, which e2e/outside/test_kubernetes.py has; the others take minutes: make e2e-long.
collect_ignore = [] if Path("/run/cluster.json").exists() else ["test_kubernetes.py"]
if not os.environ.get("UB_E2E_LONG"):
    collect_ignore += ["test_knobs.py", "test_lvm.py", "test_rates.py"]


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

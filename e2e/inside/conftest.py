"""The node that the tests run on: container images, networks, a runtime without left-overs."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.inside.cri import Runtime

IMAGES = Path("/usr/lib/ub-e2e/images")


@pytest.fixture(scope="session")
def images() -> None:
    for archive in sorted(IMAGES.glob("*.tar")):
        subprocess.run(["ctr", "--namespace=k8s.io", "images", "import", str(archive)], check=True, capture_output=True)


@pytest.fixture(scope="session")
def containerd(images: None) -> Runtime:
    runtime = Runtime()
    runtime.wait_until_ready()
    return runtime


@pytest.fixture
def runtime(containerd: Runtime) -> Iterator[Runtime]:
    """The runtime; the pods that a test leaves are removed after it."""
    yield containerd
    containerd.remove_all()

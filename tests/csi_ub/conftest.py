"""Drivers under test: the executable itself, spoken to over its socket.

``python -m csi_ub`` by default; the built ``ub-csi`` when ``UB_BIN_DIR`` names the folder it is in. Mounts are the
kernel's, so tests that make some are marked ``kernel`` and run in a mount namespace of their own.
"""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.csi_ub.driver import Driver, StartDriver, command, environment
from ubhost.kernel import mountinfo, mounts
from ubsim.pytest_plugin import pytest_configure, supernode

__all__ = ["csi_command", "driver", "pytest_configure", "start", "supernode"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartDriver]:
    """Start drivers below ``tmp_path``; afterwards stop them and unmount everything there."""
    drivers: list[Driver] = []

    def start(node: str = "node0", **options: object) -> Driver:
        driver = Driver.start(tmp_path, node, **options)  # type: ignore[arg-type]
        drivers.append(driver)
        return driver

    yield start
    for driver in drivers:
        driver.stop()
    for mount in reversed(mountinfo.below(mountinfo.read(), tmp_path.resolve())):
        mounts.unmount(Path(mount.target), lazy=True)


@pytest.fixture
def driver(start: StartDriver) -> Driver:
    return start()


@pytest.fixture(scope="session")
def csi_command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the executable with arguments to its end."""

    def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command(), *arguments], capture_output=True, text=True, timeout=30, env=environment(**(env or {}))
        )

    return run

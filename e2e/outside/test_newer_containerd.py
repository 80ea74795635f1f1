"""The same tests on containerd 2.x, whose NRI is newer than that of Debian's 1.7. Needs Go, which builds it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.__main__ import INSIDE_ENV, OUTPUT, PYTEST, REPO, TESTS_S, parts
from e2e.image import Image
from e2e.machine import Machine, Spec
from e2e.payload import payload

NO_GO = 3
DROP_INS = "/etc/systemd/system/containerd.service.d"
UNIT = """[Service]
ExecStart=
ExecStart=/mnt/payload/containerd/containerd
Environment=PATH=/mnt/payload/containerd:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""


@pytest.fixture(scope="module")
def node(guest: Image) -> Iterator[Machine]:
    """A node whose containerd was replaced; the configuration stays, containerd 2 migrates it."""
    names = ("containerd", "containerd-shim-runc-v2")
    installed = subprocess.run(
        [str(REPO / "e2e/install-go-tools"), *names], capture_output=True, text=True, check=False
    )
    if installed.returncode == NO_GO:
        pytest.skip(installed.stderr.strip())
    assert installed.returncode == 0, installed.stderr
    programs = [(Path(path), f"containerd/{Path(path).name}") for path in installed.stdout.split()]
    folder = OUTPUT / "newer-containerd"
    with payload(*parts(), *programs) as disk, Machine(Spec(guest, disk), folder) as machine:
        machine.run("sh", "-c", "mkdir -p $D && cat >$D/newer.conf", stdin=UNIT.encode(), env={"D": DROP_INS})
        machine.shell("systemctl daemon-reload && systemctl restart containerd && mkdir -p /tmp/results")
        yield machine
        machine.fetch("/var/log", folder / "node0-log")
        machine.fetch("/tmp/results", folder)


def test_qos_network_and_configuration_tests_pass_on_it(node: Machine) -> None:
    version = node.shell("ctr version | sed -n '/Server/,$ s/.*Version: *//p'")
    assert version.lstrip("v").startswith("2."), version
    done = node.run(
        *(
            "python3",
            "-m",
            "pytest",
            *PYTEST,
            "-k",
            "share_the_node_as_promised or gives_everything_back or no_configuration_written_by_hand",
            "/mnt/payload/e2e/inside",
        ),
        env=INSIDE_ENV,
        timeout_s=TESTS_S,
    )
    assert done.exit == 0, done.text[-6000:]

"""What ubhost reads from a simulated tree is what the scenario says."""

from dataclasses import replace
from pathlib import Path

import pytest

from ubhost.model import Position
from ubhost.roots import Roots
from ubhost.sysfs import read_host
from ubsim import consistency
from ubsim.expansion import load
from ubsim.hosts import hosts_of
from ubsim.sysfs import entries
from ubsim.tree import write

EXAMPLES = sorted((Path(consistency.__file__).parent / "scenarios").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_ubhost_reads_back_every_example(path: Path, tmp_path: Path) -> None:
    for name, host in list(hosts_of(load(path)).items())[:2]:
        write(tmp_path / name, entries(host))
        by_name = sorted(host.devices, key=lambda device: device.name)
        assert read_host(Roots(tmp_path / name)) == replace(host, devices=tuple(by_name), position=Position())

"""Installing where systemd runs: whatever fails or is killed, the units run one release, and the right one."""

import os
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest

from csi_ub import programs
from tests.ubnode.conftest import Bundle
from tests.ubnode.dying import deaths
from ubhost.errors import HostFault
from ubnode.install.layout import DATA_DAEMONS, UNIT_OF, Component, Places
from ubnode.install.node import Node
from ubnode.install.operations import bring, take_off
from ubnode.install.plan import Observed

SYSTEMCTL = """#!/bin/sh
# A systemd of files: which units are enabled, and which release each runs from. One release cannot be started.
set -eu
cd "$SYSTEMD"
echo "$@" >>log
command=$1
now=
for unit; do
    case $unit in --now) now=yes ;; esac
done
release=$(readlink "$NODE/opt/ub-node/current" || true)
case $command in
    enable) touch "enabled/$unit" ;;
    disable) rm -f "enabled/$unit"; [ ! "$now" ] || rm -f "running/$unit" ;;
    restart)
        rm -f "running/$unit"
        [ "$release" != broken ]
        [ -e "$NODE/etc/systemd/system/$unit" ]
        echo "$release" >"running/$unit"
        ;;
esac
"""


class Booted(Node):
    def observe(self, paths: Iterable[str]) -> Observed:
        return replace(super().observe(paths), systemd=True)


@pytest.fixture
def systemd(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "systemd"
    for kind in ("bin", "enabled", "running"):
        (folder / kind).mkdir(parents=True)
    (folder / "bin/systemctl").write_text(SYSTEMCTL)
    (folder / "bin/systemctl").chmod(0o755)
    (folder / "bin/systemd-run").symlink_to("systemctl")
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SYSTEMD", str(folder))
    monkeypatch.setenv("NODE", str(root))
    return folder


def running(systemd: Path) -> dict[str, str]:
    return {unit.name: unit.read_text().strip() for unit in (systemd / "running").iterdir()}


def enabled(systemd: Path) -> set[str]:
    return {unit.name for unit in (systemd / "enabled").iterdir()}


def all_of(release: str) -> dict[str, str]:
    return dict.fromkeys(UNIT_OF.values(), release)


def silent(said: str) -> None:
    """Say nothing."""


def put(root: Path, bundle: Path) -> None:
    bring(Booted(root, bundle), bundle.name, Component, Places(), silent)


def test_a_release_that_cannot_be_started_leaves_the_units_to_the_one_before(
    root: Path, bundle: Bundle, systemd: Path
) -> None:
    put(root, bundle("1.0.0"))
    with pytest.raises(HostFault, match="cannot run systemctl restart"):
        put(root, bundle("broken"))
    assert running(systemd) == all_of("1.0.0")
    assert enabled(systemd) == set(UNIT_OF.values())
    assert not (root / "opt/ub-node/broken").exists()


def test_a_first_release_that_cannot_be_started_leaves_no_unit(root: Path, bundle: Bundle, systemd: Path) -> None:
    with pytest.raises(HostFault, match="cannot run systemctl restart"):
        put(root, bundle("broken"))
    assert running(systemd) == {}
    assert enabled(systemd) == set()


def test_after_a_killed_upgrade_the_next_starts_every_unit_from_the_new_release(
    root: Path, bundle: Bundle, systemd: Path
) -> None:
    old, new = bundle("1.0.0"), bundle("1.1.0")
    put(root, old)
    for moment in deaths(lambda: put(root, new)):
        put(root, new)
        assert running(systemd) == all_of("1.1.0"), moment
        assert enabled(systemd) == set(UNIT_OF.values()), moment
        put(root, old)
    assert running(systemd) == all_of("1.1.0")


@pytest.mark.parametrize("volumes", [0, 1])
def test_data_daemons_end_with_the_driver_unless_they_serve_volumes_that_stay(
    root: Path, bundle: Bundle, systemd: Path, volumes: int
) -> None:
    scope = programs.apart(["/usr/sbin/glusterfsd"], systemd=systemd)[4].removeprefix("--unit=")
    assert fnmatch(f"{scope}.scope", DATA_DAEMONS)
    put(root, bundle("1.0.0"))
    for number in range(volumes):
        (root / f"var/lib/ub-node/pools/default/volumes/v{number}").mkdir(parents=True)
    take_off(Booted(root), [Component.CSI], Places(), silent)
    assert (DATA_DAEMONS in (systemd / "log").read_text()) is (volumes == 0)


def test_units_are_stopped_before_they_are_taken_away(root: Path, bundle: Bundle, systemd: Path) -> None:
    put(root, bundle("1.0.0"))
    take_off(Booted(root), (), Places(), silent)
    assert running(systemd) == {}
    assert enabled(systemd) == set()

"""The CNI configuration generator on a real folder."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cni_ub.agent.conf import ConfGenerator
from cni_ub.agent.settings import ConfMode, ConfSettings
from tests.cni_ub.agent.test_confplan import BRIDGE, CALICO, MULTUS, PORTMAP
from tests.cni_ub.agent.test_watchedfolder import watched
from ubhost.errors import Conflict, NotFound
from ubhost.roots import Roots

OURS = "00-ub-cni.conflist"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "etc/cni/net.d"
    made.mkdir(parents=True)
    (made / "10-calico.conflist").write_text(json.dumps(CALICO))
    return made


def generator(folder: Path, mode: ConfMode) -> ConfGenerator:
    return ConfGenerator(ConfSettings(mode), Roots(folder.parents[2]))


def plugins(path: Path) -> list[str]:
    return [plugin["type"] for plugin in json.loads(path.read_text())["plugins"]]


def test_the_file_is_private_and_nothing_else_appears(folder: Path) -> None:
    with watched(folder) as events:
        assert generator(folder, ConfMode.CONFLIST).update() == [folder / OURS]
    assert plugins(folder / OURS) == ["bridge", "portmap", "ub-cni"]
    assert stat.S_IMODE((folder / OURS).stat().st_mode) == 0o600
    assert {event.partition(" ")[2] for event in events} == {OURS}
    assert sorted(path.name for path in folder.iterdir()) == [OURS, "10-calico.conflist"]
    assert list(folder.parent.iterdir()) == [folder]


def test_nothing_is_written_when_nothing_changed(folder: Path) -> None:
    generator(folder, ConfMode.CONFLIST).update()
    with watched(folder) as events:
        assert generator(folder, ConfMode.CONFLIST).update() == []
    assert events == []


def test_it_follows_the_primary(folder: Path) -> None:
    made = generator(folder, ConfMode.CONFLIST)
    made.update()
    (folder / "10-calico.conflist").write_text(json.dumps({**CALICO, "plugins": [BRIDGE]}))
    assert made.update() == [folder / OURS]
    assert plugins(folder / OURS) == ["bridge", "ub-cni"]
    (folder / "05-cilium.conflist").write_text(json.dumps({**CALICO, "name": "cilium", "plugins": [PORTMAP]}))
    made.update()
    assert json.loads((folder / OURS).read_text())["name"] == "cilium"
    (folder / "05-cilium.conflist").unlink()
    (folder / "10-calico.conflist").unlink()
    assert made.update() == [folder / OURS]
    assert list(folder.iterdir()) == []


def test_a_primary_that_is_half_written_changes_nothing_until_it_is_whole(folder: Path) -> None:
    made = generator(folder, ConfMode.CONFLIST)
    made.update()
    before = (folder / OURS).read_bytes()
    (folder / "10-calico.conflist").write_text(json.dumps(CALICO)[:40])
    with pytest.raises(Conflict, match=r"10-calico\.conflist is not JSON"):
        made.update()
    assert (folder / OURS).read_bytes() == before


def test_in_the_networks_folder_runtimes_are_made_to_look_and_no_file_appears_beside(folder: Path) -> None:
    with watched(folder) as events:
        generator(folder, ConfMode.SUBDIR).update()
    path = folder / "k8s-pod-network/ub-cni.conf"
    assert json.loads(path.read_text())["type"] == "ub-cni"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert events == ["CREATE .ub-cni-reload", "CREATE k8s-pod-network", "DELETE .ub-cni-reload"]  # all of them folders
    assert sorted(entry.name for entry in folder.iterdir()) == ["10-calico.conflist", "k8s-pod-network"]
    assert list(path.parent.iterdir()) == [path]


def test_a_change_of_mode_takes_back_what_the_other_mode_made(folder: Path) -> None:
    generator(folder, ConfMode.CONFLIST).update()
    generator(folder, ConfMode.SUBDIR).update()
    assert not (folder / OURS).exists()
    generator(folder, ConfMode.OFF).update()
    assert [entry.name for entry in folder.iterdir()] == ["10-calico.conflist"]


@pytest.mark.parametrize("mode", [ConfMode.CONFLIST, ConfMode.SUBDIR])
def test_everything_of_ours_can_be_removed_and_nothing_of_others(folder: Path, mode: ConfMode) -> None:
    by_hand = folder / "00-mine.conflist"
    neighbour = folder / "k8s-pod-network/other.conf"
    neighbour.parent.mkdir()
    neighbour.write_text(json.dumps(PORTMAP))
    made = generator(folder, mode)
    made.update()
    by_hand.write_text(json.dumps({**CALICO, "plugins": [BRIDGE, {"type": "ub-cni"}]}))
    assert len(made.remove_all()) == 1
    assert made.remove_all() == []
    assert sorted(path.name for path in folder.rglob("*")) == [
        "00-mine.conflist",
        "10-calico.conflist",
        "k8s-pod-network",
        "other.conf",
    ]


def test_a_folder_of_the_network_that_is_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (folder / "k8s-pod-network").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Conflict, match="symbolic link"):
        generator(folder, ConfMode.SUBDIR).update()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_is_no_plain_file_is_no_configuration(folder: Path) -> None:
    os.mkfifo(folder / "01-trap.conf")
    (folder / "02-folder.conf").mkdir()
    generator(folder, ConfMode.CONFLIST).update()
    assert plugins(folder / OURS) == ["bridge", "portmap", "ub-cni"]


def test_a_missing_folder_is_named_unless_nothing_is_wanted_there(tmp_path: Path) -> None:
    folder = tmp_path / "etc/cni/net.d"
    with pytest.raises(NotFound, match=r"etc/cni/net\.d is missing"):
        generator(folder, ConfMode.CONFLIST).update()
    assert generator(folder, ConfMode.OFF).update() == []


def test_running_it_follows_within_a_second_and_says_what_keeps_it(folder: Path) -> None:
    made = generator(folder, ConfMode.CONFLIST)
    made.start()
    try:
        _until((folder / OURS).exists)
        (folder / "10-calico.conflist").write_text("{")
        _until(lambda: "is not JSON" in (made.ready() or ""))
        (folder / "00-multus.conf").write_text(json.dumps(MULTUS))
        (folder / "10-calico.conflist").write_text(json.dumps({**CALICO, "plugins": [BRIDGE]}))
        _until(lambda: plugins(folder / OURS) == ["bridge", "ub-cni"])
        _until(lambda: made.ready() is None)
        (folder / OURS).unlink()
        _until((folder / OURS).exists)
    finally:
        made.stop()
    assert (folder / OURS).exists()  # pods keep their UB network while the agent is restarted


class Raced(ConfGenerator):
    """The primary changes right after the first update has read it."""

    is_first = True

    def update(self) -> list[Path]:
        changed = super().update()
        if self.is_first:
            self.is_first = False
            (self.folder / "10-calico.conflist").write_text(json.dumps({**CALICO, "plugins": [BRIDGE]}))
        return changed


def test_a_change_during_an_update_is_not_missed(folder: Path) -> None:
    made = Raced(ConfSettings(ConfMode.CONFLIST), Roots(folder.parents[2]))
    made.start()
    try:
        _until(lambda: (folder / OURS).exists() and plugins(folder / OURS) == ["bridge", "ub-cni"])
    finally:
        made.stop()


def _until(true: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


KILLED = """
import os, pathlib, signal, sys
from cni_ub.agent.conf import ConfGenerator
from cni_ub.agent.settings import ConfMode, ConfSettings
from ubhost.roots import Roots
def die(*arguments, **keywords):
    os.kill(os.getpid(), signal.SIGKILL)
where, name = sys.argv[2].rsplit(".", 1)
setattr({"os": os, "Path": pathlib.Path}[where], name, die)
ConfGenerator(ConfSettings(ConfMode(sys.argv[3])), Roots(pathlib.Path(sys.argv[1]))).update()
"""


@pytest.mark.parametrize("mode", [ConfMode.CONFLIST, ConfMode.SUBDIR])
@pytest.mark.parametrize("at", ["os.fchmod", "os.fsync", "Path.replace", "os.pwrite", "Path.mkdir", "Path.rmdir"])
def test_killed_at_any_step_the_folder_is_never_wrong_and_the_next_run_puts_it_right(
    folder: Path, mode: ConfMode, at: str
) -> None:
    root = folder.parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-c", KILLED, str(root), at, mode.value]
    killed = subprocess.run(arguments, check=False, env=environment)
    assert killed.returncode in (0, -signal.SIGKILL)  # a step that this mode has not
    for path in folder.iterdir():
        if path.is_file():  # a runtime that looks now finds whole configurations only
            assert json.loads(path.read_text())["plugins"]
    made = generator(folder, mode)
    made.update()
    made.update()
    assert len(made.remove_all()) == 1
    assert [entry.name for entry in folder.iterdir()] == ["10-calico.conflist"]
    assert list(folder.parent.iterdir()) == [folder]

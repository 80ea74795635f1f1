"""What the plugin process changed is put back, whatever ended it; a dry run changes nothing.

Letters and numbers in parentheses are the faults of reference/nri.md section 5.
"""

import signal
import time
from pathlib import Path

import pytest

from tests.nri_qos.cgroups import Load, Tree
from tests.nri_qos.conftest import Plugin, container, pod, restore, run_before, start_pod, until
from tests.nri_qos.nodes import put
from ubsim.runtime import Runtime

PERIOD = {"period": 0.1}


def squeeze_all(runtime: Runtime, tree: Tree, load: Load) -> dict[str, str]:
    """Run pods that were there before the plugin, under load; return what their files said before."""
    for name, qos in (("web", "LS"), ("batch", "BE"), ("plain", None)):
        made = pod(name, qos)
        folder, _ = run_before(runtime, tree, made, container(made, cpus=1))
        load.cpus[folder] = 1.0
    load.cpus[""] = 4.0
    return tree.everything()


@pytest.fixture
def before(runtime: Runtime, plugin: Plugin, tree: Tree, load: Load) -> dict[str, str]:
    """Let the plugin work under load; return what the files of pods that were there before it said."""
    said = squeeze_all(runtime, tree, load)
    load.start()
    plugin.start(config=PERIOD)
    runtime.register()
    return said


def test_restore_leaves_no_trace_after_a_kill(
    before: dict[str, str], runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    """(F7)"""
    _, db = start_pod(runtime, tree, "db", "HLS", 2, guaranteed=True)
    plugin.wait_for("offline work squeezed")
    until(lambda: tree.everything() | {} != before)
    until(lambda: db in (root / "run/ub-node/nri-qos.journal").read_text())
    refused = restore(root)
    assert (refused.returncode, "nri-qos runs on this node" in refused.stderr) == (1, True)
    plugin.stop(signal.SIGKILL)
    done = restore(root)
    assert done.returncode == 0, done.stderr
    after = tree.everything()
    assert {path: after[path] for path in before} == before
    assert tree.read(db, "cpuset.cpus") == ""  # what it would say without us
    assert restore(root).stdout == "0 restored, 0 widened, 0 changed by others, 0 gone, 0 failed\n"


def test_restore_leaves_alone_what_others_changed_since(
    before: dict[str, str], plugin: Plugin, tree: Tree, root: Path
) -> None:
    batch = next(path for path in before if path.endswith("uid-batch.slice/cpu.weight"))
    until(lambda: (tree.root / batch).read_text() == "1")
    plugin.stop(signal.SIGKILL)
    put(tree.root / batch, "55")
    assert "1 changed by others" in restore(root).stdout
    assert tree.everything() == before | {batch: "55"}


@pytest.mark.parametrize("pause", [0.05, 0.4])
def test_a_kill_at_any_moment_leaves_everything_restorable(
    pause: float, before: dict[str, str], runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    for _ in range(3):
        time.sleep(pause)
        plugin.stop(signal.SIGKILL)
        plugin.start(config=PERIOD)
        runtime.register()
    plugin.stop(signal.SIGKILL)
    assert restore(root).returncode == 0
    assert tree.everything() == before


def test_exit_keeps_by_default_and_restores_if_configured(
    before: dict[str, str], runtime: Runtime, plugin: Plugin, tree: Tree
) -> None:
    until(lambda: tree.everything() != before)
    assert plugin.stop() == 0
    assert tree.everything() != before
    plugin.start(config={**PERIOD, "on_exit": "restore"})
    runtime.register()
    assert plugin.stop() == 0
    assert tree.everything() == before


def test_a_dry_run_writes_nothing_at_all(runtime: Runtime, plugin: Plugin, tree: Tree, load: Load, root: Path) -> None:
    before = squeeze_all(runtime, tree, load)
    files = {path for path in root.rglob("*") if path.is_file()}
    load.cpus = dict.fromkeys(load.cpus, 7.0)
    load.start()
    plugin.start("--dry-run", config=PERIOD)
    runtime.register()
    until(lambda: any(line["cpus"] == 1 for line in plugin.lines("offline work squeezed")))
    load.cpus = dict.fromkeys(load.cpus, 0.0)
    plugin.wait_for("offline work given more")
    assert tree.everything() == before
    assert plugin.stop() == 0
    load.end()
    left = {path for path in root.rglob("*") if path.is_file()} - files
    assert {path.name for path in left} == {"nri-qos.log", "nri-qos.yaml"}

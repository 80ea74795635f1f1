"""Cache and memory bandwidth of offline work, on plain files that say what a processor with resctrl does."""

import signal
from pathlib import Path

import pytest

from nri_qos.config import Resctrl
from nri_qos.resctrl import GROUP, Domains, limits, parse
from tests.nri_qos.cgroups import Tree
from tests.nri_qos.conftest import Plugin, restore, start_pod, until
from ubsim.runtime import Runtime

INTEL = {"L3": Domains({"0": "fffff", "1": "fffff"}, 1), "MB": Domains({"0": "100", "1": "100"}, 10, 10)}


def mount(root: Path, schemata: str = "    MB:0=100;1=100\n    L3:0=ff;1=ff\n") -> Path:
    """Let resctrl be there, with a group of somebody else's and threads 1 to 5 in the default group."""
    made = root / "sys/fs/resctrl"
    for name, text in {
        "schemata": schemata,
        "tasks": "1\n2\n3\n4\n5\n",
        "info/L3/cbm_mask": "ff\n",
        "info/L3/min_cbm_bits": "2\n",
        "info/MB/min_bandwidth": "10\n",
        "info/MB/bandwidth_gran": "10\n",
        "theirs/schemata": schemata,
        "theirs/tasks": "70\n71\n",
    }.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    return made


def everything(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_offline_threads_get_their_part_and_nobody_elses_are_touched(
    runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    resctrl = mount(root)
    before = everything(resctrl)
    plugin.start(config={"period": 0.1, "resctrl": {"cache": 40, "bandwidth": 33}})
    runtime.register()
    _, web = start_pod(runtime, tree, "web", "LS", 1)
    _, batch = start_pod(runtime, tree, "batch", "BE")
    tree.write(web, "cgroup.threads", "1\n2")
    tree.add(f"{batch}/inner")
    tree.write(f"{batch}/inner", "cgroup.threads", "4\n5")
    tree.write(batch, "cgroup.threads", "3\n70")
    until(lambda: (resctrl / GROUP / "tasks").exists())
    until(lambda: sorted((resctrl / GROUP / "tasks").read_text().split()) == ["3", "4", "5"])  # 70 is theirs
    assert parse((resctrl / GROUP / "schemata").read_text()) == {
        "L3": {"0": "7", "1": "7"},
        "MB": {"0": "40", "1": "40"},
    }
    plugin.stop(signal.SIGKILL)
    done = restore(root)
    assert (done.returncode, (resctrl / GROUP).exists()) == (0, False)
    assert everything(resctrl) == before


def test_a_group_that_is_wanted_no_more_is_removed_at_the_next_start(
    runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    resctrl = mount(root)
    plugin.start(config={"period": 0.1, "resctrl": {"cache": 50}})
    runtime.register()
    until((resctrl / GROUP / "schemata").exists)
    plugin.stop()
    assert (resctrl / GROUP).exists()  # on_exit: keep
    plugin.start(config={"period": 0.1, "on_exit": "restore"})
    runtime.register()
    until(lambda: not (resctrl / GROUP).exists())


def test_a_dry_run_makes_no_group(runtime: Runtime, plugin: Plugin, tree: Tree, root: Path) -> None:
    resctrl = mount(root)
    before = everything(resctrl)
    plugin.start("--dry-run", config={"period": 0.1, "resctrl": {"cache": 50}})
    runtime.register()
    start_pod(runtime, tree, "batch", "BE")
    plugin.wait_for("offline work squeezed")
    assert everything(resctrl) == before


@pytest.mark.parametrize("is_mounted", [False, True])
def test_a_processor_that_cannot_divide_is_told_once_and_everything_else_works(
    is_mounted: bool, runtime: Runtime, plugin: Plugin, tree: Tree, root: Path
) -> None:
    """(D23)"""
    if is_mounted:
        (mount(root) / GROUP).write_text("no more groups can be made: mkdir fails")
    plugin.start(config={"period": 0.1, "resctrl": {"cache": 50}})
    runtime.register()
    batch, _ = start_pod(runtime, tree, "batch", "BE")
    line = plugin.wait_for("cache and memory bandwidth of offline work are not limited")
    assert ("cannot make" if is_mounted else "not mounted on this node") in line["error"]
    until(lambda: tree.read(batch, "cpu.weight") == "1")
    plugin.wait_for("offline work squeezed")
    assert len(plugin.lines("cache and memory bandwidth of offline work are not limited")) == 1


def test_shares_become_the_lowest_ways_and_steps_of_bandwidth() -> None:
    assert limits(INTEL, Resctrl(25, 25)) == {"L3": {"0": "1f", "1": "1f"}, "MB": {"0": "30", "1": "30"}}
    assert limits(INTEL, Resctrl(1, 1)) == {"L3": {"0": "1", "1": "1"}, "MB": {"0": "10", "1": "10"}}
    assert limits(INTEL, Resctrl(100, 100)) == {name: dict(domains.full) for name, domains in INTEL.items()}
    assert limits(INTEL, Resctrl()) == {}


def test_code_and_data_of_a_divided_cache_get_the_same() -> None:
    """(D23) Ids of domains need not be those of NUMA nodes, nor without gaps."""
    resources = {"L3CODE": Domains({"0": "ff", "8": "ff"}, 1), "L3DATA": Domains({"0": "ff", "8": "ff"}, 1)}
    assert limits(resources, Resctrl(cache=50)) == {key: {"0": "f", "8": "f"} for key in resources}


def test_bandwidth_that_is_no_percentage_is_left_alone() -> None:
    """(D23) AMD counts it absolutely, and so does the kernel's software controller."""
    assert limits({"MB": Domains({"0": "2048"}, 1, 1)}, Resctrl(bandwidth=50)) == {}

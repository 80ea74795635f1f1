"""Configurations of nri-qos that make no sense, or none on this machine."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_qos import cli
from nri_qos.config import Config, size
from nri_qos.model import Machine
from nri_qos.pools import Node, misfit
from nri_qos.watch import Watch
from nri_qos.world import World
from tests.nri_qos import nodes
from tests.nri_qos.conftest import Plugin
from ubhost import config
from ubhost.errors import InvalidRequest
from ubhost.roots import Roots
from ubsim.runtime import Runtime

ENDLESS = "1" * 5000
ODD = ("٣", "\uff14", "1٣", "²", ENDLESS, "1e400", "inf", "nan", "-1", "0x10", "1_0", " ", "")
"""What is a number to Python, or nearly."""

NUMBERS = ("period", "floor", "threshold", "pressure", "memory_reserve", "remote_distance")
SIZES = ("remote_budget.pod", "remote_budget.namespace", "remote_limit.pod", "remote_limit.namespace")
KNOBS = {
    "cpu.max.burst": ("0", "50000"), "cpu.uclamp.min": ("0", "99.99", "max"), "cpu.uclamp.max": ("100.00",),
    "cpu.qos_level": ("-1", "0"), "memory.qos_level": ("-1", "0"), "memory.min": ("0", "max"), "memory.low": ("4096",),
    "memory.high": ("4096", "max"), "memory.swap.high": ("max",), "memory.swap.max": ("0",),
    "memory.zswap.max": ("1",), "memory.oom.group": ("0", "1"), "io.weight": ("10", "default 10"),
    "io.bfq.weight": ("1000",), "pids.max": ("4096", "max"), "hugetlb.2MB.max": ("0",),
    "io.max sda": ("rbps=1", "rbps=max wiops=5"), "io.latency 8:0": ("target=5000",), "io.weight sda": ("10",),
    "io.bfq.weight sda": ("default",), "rdma.max ubcore0": ("hca_object=2000 hca_handle=max", "hca_handle=0"),
}  # fmt: skip
"""Each file that can be set, and values of it."""


def parse(**content: Any) -> Config:
    return config.parse(yaml.safe_dump(content), Config, where="the file")


@pytest.mark.parametrize("value", [*ODD, float("inf"), float("nan")], ids=lambda value: repr(value)[:10])
@pytest.mark.parametrize("key", [*NUMBERS, *SIZES, "eviction.after", "eviction.every", "resctrl.cache"])
def test_a_number_that_is_none_is_one_error_with_its_key_and_its_value(key: str, value: object) -> None:
    outer, _, inner = key.partition(".")
    with pytest.raises(InvalidRequest) as refused:
        parse(**{outer: {inner: value} if inner else value})
    assert f"{key}: " in str(refused.value)
    assert repr(value)[:70] in str(refused.value)
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize("key", [*NUMBERS, *SIZES, "eviction.after", "resctrl.bandwidth", "reserved", "remote_nodes"])
def test_a_number_without_end_is_an_error_of_its_key_and_not_of_the_file(key: str) -> None:
    outer, _, inner = key.partition(".")
    text = f"{outer}: {{{inner}: {ENDLESS}}}" if inner else f"{outer}: {ENDLESS}"
    with pytest.raises(InvalidRequest, match=f"{key}: ") as refused:
        config.parse(text, Config, where="the file")
    assert "not YAML" not in str(refused.value)


@pytest.mark.parametrize(("file", "values"), KNOBS.items(), ids=KNOBS)
def test_a_knob_takes_values_that_the_kernel_takes_and_no_others(file: str, values: tuple[str, ...]) -> None:
    for value in values:
        assert parse(knobs={"BE": {file: value}}).knobs
    name = values[0].partition("=")[0] + "=" if "=" in values[0] else ""
    more = {"memory.qos_level": ("1", "2"), "cpu.qos_level": ("3",)}
    for odd in {*ODD, "-9", "max max", *more.get(file, ())} - {*values}:
        with pytest.raises(InvalidRequest, match=rf"knobs\.BE: {file}: ") as refused:
            parse(knobs={"BE": {file: name + odd}})
        assert "is not a value of it" in str(refused.value)
        assert len(str(refused.value)) < 250


@pytest.mark.parametrize(
    ("file", "value"),
    [
        ("io.max sda", "rbps=1 rbps=2"), ("io.max 8:0", "rbps=1 wbps=1 rbps=1"), ("io.max sda", "wiops=max wiops=1"),
        ("rdma.max ubcore0", "hca_handle=1 hca_handle=2"),
    ],
)  # fmt: skip
def test_what_a_line_of_a_device_names_twice_is_refused(file: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"knobs\.BE: {file}: {value[:4]}.* is given twice"):
        parse(knobs={"BE": {file: value}})


@pytest.mark.parametrize("file", ["hugetlb.٣MB.max", f"hugetlb.{ENDLESS}MB.max", "io.max ٣:٣", "io.max  sda"])
def test_a_file_whose_name_has_other_digits_is_none(file: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be set"):
        parse(knobs={"BE": {file: "max"}})


def test_sizes_are_those_that_the_other_plugins_take() -> None:
    settings = parse(remote_budget={"pod": "4GiB", "namespace": 4096}, remote_limit={"pod": "1.5Gi"})
    assert (size(settings.remote_budget.pod), size(settings.remote_budget.namespace)) == (4 << 30, 4096)
    assert size(settings.remote_limit.pod) == 3 << 29


MISFITS = (
    {"reserved": "0-7"}, {"reserved": "0-100"}, {"reserved": "0-3", "available": "0-3"}, {"available": "8-15"},
    {"available": "8-15", "reserved": "0"}, {"remote_nodes": "0-2"}, {"remote_nodes": "0-63"},
)  # fmt: skip


@pytest.mark.parametrize("settings", MISFITS, ids=str)
def test_a_configuration_that_leaves_nothing_is_no_start(
    settings: dict[str, str], plugin: Plugin, runtime: Runtime
) -> None:
    for arguments in ([], ["--dry-run"]):
        plugin.start(*arguments, config=settings)
        assert plugin.process.wait(timeout=30) == 2
    said = plugin.wait_for("nri-qos cannot go on", 2)["error"]
    assert all(f"{key} {value}" in said for key, value in settings.items())
    assert "is left for" in said
    with pytest.raises(TimeoutError):
        runtime.accept(timeout_s=0.2)  # the runtime never heard of it


@pytest.mark.parametrize(
    "settings", [{}, {"reserved": "0-6"}, {"reserved": "8-15"}, {"available": "7-9"}, {"remote_nodes": "2-9"}], ids=str
)
def test_a_configuration_that_leaves_something_is_one(settings: dict[str, str], machine: Machine) -> None:
    assert misfit(machine, parse(**settings)) is None


def test_a_configuration_from_the_runtime_that_leaves_nothing_is_refused(plugin: Plugin, root: Path) -> None:
    with Runtime(root / "var/run/nri/nri.sock", timeout_s=15) as runtime:
        plugin.start(config={})
        peer = runtime.accept()
        with pytest.raises(Exception, match="reserved 0-7: none of the CPUs of this node, 0-7, is left"):
            runtime.handshake(peer, "reserved: 0-7")


def test_cpus_that_go_offline_later_leave_containers_those_that_are_there(machine: Machine, root: Path) -> None:
    world = World(parse(reserved="0-3"))
    watch = Watch(world, Roots(root))
    watch.look()
    assert (world.node().pool, misfit(machine, world.config)) == (frozenset({4, 5, 6, 7}), None)
    nodes.put(root / "sys/devices/system/cpu/online", "0-3")
    watch.look()
    assert world.machine is not None
    assert Node(world.machine, world.config).pool == frozenset({0, 1, 2, 3})
    assert "reserved 0-3: none of the CPUs of this node, 0-3," in (misfit(world.machine, world.config) or "")


def test_a_plan_with_a_configuration_that_leaves_nothing_is_refused(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UB_ROOT", str(root))
    (tmp_path / "nri.yaml").write_text("reserved: 0-7")
    with pytest.raises(InvalidRequest, match="none of the CPUs of this node"):
        cli.main(["plan", "--file", "/dev/null", "--config", str(tmp_path / "nri.yaml")])

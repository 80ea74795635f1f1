from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_qos import cpulist
from nri_qos.model import Machine
from nri_qos.observe import read_machine
from tests.nri_qos import nodes
from ubhost.errors import HostFault, InvalidRequest


@given(st.frozensets(st.integers(0, cpulist.MAX_ID - 1)))
def test_a_rendered_list_reads_back_as_the_same_ids(ids: frozenset[int]) -> None:
    assert cpulist.parse(cpulist.render(ids)) == ids


@given(st.text(max_size=12))
def test_any_text_is_a_list_or_a_clear_error(text: str) -> None:
    with suppress(InvalidRequest):
        assert all(0 <= number < cpulist.MAX_ID for number in cpulist.parse(text))


@pytest.mark.parametrize("text", ["0-99999999", "3-1", "1,,2", ",", "-1", "0-", "a", "٣", "65536"])
def test_a_malformed_list_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        cpulist.parse(text)


@pytest.mark.parametrize(
    "machine",
    [
        nodes.machine("0-3"),
        nodes.machine("0-1,4-5", "2-3,6-7", threads=2, remote=1),
        nodes.machine("0-63", "128-191", isolated="2-3"),
    ],
)
def test_a_machine_reads_back_as_it_was_written(machine: Machine, tmp_path: Path) -> None:
    nodes.write(machine, tmp_path)
    assert read_machine(tmp_path / "sys") == machine


def test_a_kernel_without_numa_is_one_node(tmp_path: Path) -> None:
    (tmp_path / "devices/system/cpu").mkdir(parents=True)
    (tmp_path / "devices/system/cpu/online").write_text("0-1\n")
    machine = read_machine(tmp_path)
    assert [(node.id, node.cpus, node.memory_total) for node in machine.nodes] == [(0, (0, 1), None)]
    assert machine.core(1) == {1}


def test_a_file_that_is_no_list_is_named(tmp_path: Path) -> None:
    nodes.write(nodes.machine("0-3"), tmp_path)
    path = tmp_path / "sys/devices/system/node/node0/cpulist"
    path.write_text("zero\n")
    with pytest.raises(HostFault, match=f"{path}: 'zero"):
        read_machine(tmp_path / "sys")


def test_a_machine_without_any_cpu_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HostFault, match="cpu/online names no CPU"):
        read_machine(tmp_path)


def test_cores_are_read_again_only_when_cpus_came_or_went(tmp_path: Path) -> None:
    machine = nodes.machine("0-3", threads=2)
    nodes.write(machine, tmp_path)
    known = replace(machine, siblings={0: frozenset({0, 3})})
    assert read_machine(tmp_path / "sys", known).siblings == known.siblings
    (tmp_path / "sys/devices/system/cpu/online").write_text("0-2\n")
    assert read_machine(tmp_path / "sys", known).core(0) == {0, 1}


def test_cache_counts_as_memory_that_a_container_can_have(tmp_path: Path) -> None:
    nodes.write(nodes.machine("0-3"), tmp_path)
    meminfo = tmp_path / "sys/devices/system/node/node0/meminfo"
    meminfo.write_text("Node 0 MemTotal:  100 kB\nNode 0 MemFree:  10 kB\nNode 0 Inactive(file):  5 kB\n")
    (node,) = read_machine(tmp_path / "sys").nodes
    assert (node.memory_total, node.memory_free) == (100 * 1024, 15 * 1024)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    nodes.write(nodes.machine("0-3"), tmp_path)
    path = tmp_path / "sys/devices/system/cpu/online"
    path.unlink()
    path.mkdir()
    with pytest.raises(HostFault, match=str(path)):
        read_machine(tmp_path / "sys")


def test_nodes_that_come_and_go_between_two_reads_keep_their_own_distances(tmp_path: Path) -> None:
    nodes.write(nodes.machine("0-3", "4-7", remote=1), tmp_path)
    folder = tmp_path / "sys/devices/system/node"
    (folder / "online").write_text("0,2\n")  # taken off line, its files not gone yet
    assert [(n.id, n.distances[2]) for n in read_machine(tmp_path / "sys").nodes] == [(0, 80), (2, 10)]
    (folder / "online").write_text("0-3\n")  # on line, no files yet; the others tell of it
    for number, line in enumerate(("10 21 80 99", "21 10 80 99", "80 80 10 99")):
        (folder / f"node{number}/distance").write_text(f"{line}\n")
    assert [(n.id, n.distances[3]) for n in read_machine(tmp_path / "sys").nodes] == [(0, 99), (1, 99), (2, 99)]


def test_sparse_ids_and_asymmetric_distances_are_read_as_they_are(tmp_path: Path) -> None:
    nodes.write(nodes.machine("0-3"), tmp_path)
    folder = tmp_path / "sys/devices/system/node"
    (folder / "online").write_text("0,8,254\n")
    (folder / "node0/distance").write_text("10 20 80\n")
    for number, line in ((8, "40 10 80"), (254, "80 90 10")):
        (folder / f"node{number}").mkdir()
        (folder / f"node{number}/distance").write_text(f"{line}\n")
        (folder / f"node{number}/cpulist").write_text("\n")
    found = read_machine(tmp_path / "sys")
    assert [(node.id, node.distances) for node in found.nodes] == [
        (0, {0: 10, 8: 20, 254: 80}),
        (8, {0: 40, 8: 10, 254: 80}),
        (254, {0: 80, 8: 90, 254: 10}),
    ]

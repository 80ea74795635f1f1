"""What a scheduler is told."""

from dataclasses import replace
from pathlib import Path

from ubhost.capacity import Devices, NodeMemory, Plane, capacity
from ubhost.discovery import Discovery, Level
from ubhost.model import MemoryPool, SharedMemory
from ubhost.provider import Device, Kind
from ubhost.topology import Node, topology
from ubhost.ubse.bodies import NumaMemory
from ubsim.expansion import load
from ubsim.hosts import hosts_of

GIB = 1 << 30


def found() -> Discovery:
    host = hosts_of(load(Path(__file__).with_name("pair.yaml")))["node0"]
    host = replace(
        host,
        memory_pools=(MemoryPool(0, total=4 * GIB, used=GIB),),
        shared_memory=(SharedMemory(1, "export", GIB), SharedMemory(2, "import", GIB)),
    )
    devices = (Device("urma_1", (), numa=0), Device("urma_2", (), numa=0, is_healthy=False), Device("urma_3", ()))
    nodes = (Node(0, "node0", 0), Node(1, "node1", 1))
    memory = (
        NumaMemory(1, 0, 0, False, 25, 100 * GIB, 80 * GIB, 9, 5),
        NumaMemory(1, 1, 1, False, 100, 100 * GIB, 10 * GIB, 9, 2),
        NumaMemory(1, 1, 2, True, 100, 50 * GIB, 50 * GIB, 9, 2),
    )
    shown = replace(topology(host), nodes=nodes)
    return Discovery(Kind.SIM, Level.STAND_IN, host, shown, devices=devices, memory=memory)


def test_only_healthy_devices_count_and_say_where_they_are() -> None:
    assert capacity(found()).devices == Devices(3, 2, {"0": 1, "unknown": 1})


def test_a_plane_has_the_bandwidth_of_the_ports_that_are_up() -> None:
    assert capacity(found()).planes == (Plane(0, 9, 1, 400_000), Plane(1, 9, 1, 400_000))


def test_no_more_can_be_lent_than_is_free_and_than_the_ratio_allows() -> None:
    """25 % of 100 GiB, and all of the 10 GiB that are free; what a node borrowed itself is not its own."""
    assert capacity(found()).memory == (
        NodeMemory(0, "node0", 0, 0, 0, 0, 0),
        NodeMemory(1, "node1", 1, 200 * GIB, 90 * GIB, 35 * GIB, 7),
    )


def test_borrowed_and_lent_memory_is_summed_up() -> None:
    known = capacity(found())
    assert (known.borrowed, known.lent, known.pool_total, known.pool_used) == (4 * GIB, GIB, 4 * GIB, GIB)

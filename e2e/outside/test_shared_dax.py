"""Memory volumes of two kernels that share a DAX device: one nvdimm, which both guests load and store.

Level: soft device. The memory is the host's, so its hardware keeps the guests' caches alike. No figure is one of UB.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.__main__ import INSIDE_ENV
from e2e.channel import Finished, Running
from e2e.machine import Machine
from e2e.outside.conftest import wait_for
from e2e.outside.volumes import PATIENCE_S, PROGRAM, Pair, Volume, create, cut, refusal, start_driver

MAPPED = ("python3", "-m", "e2e.inside.mapped")
POD = ("python3", "-m", "e2e.inside.memorypod")
DEVICE = "/dev/dax0.0"
REGION = {"name": "nvdimm", "owner": "node0", "coherent": True, "devices": {"node0": "dax0.0", "node1": "dax0.0"}}
ROUNDS = 200
LOAD = "modprobe -a dax_pmem device_dax"
# Its page structures must lie in each guest's own memory: --map=dev would put those of both into the shared one.
MAKE = "ndctl create-namespace --force --reconfig=namespace0.0 --mode=devdax --map=mem"
SEE = "ndctl disable-namespace namespace0.0; ndctl enable-namespace namespace0.0"


def program(node: Machine, *arguments: object) -> str:
    done = node.run(*MAPPED, *map(str, arguments), env=INSIDE_ENV, timeout_s=PATIENCE_S)
    assert done.exit == 0, f"{node.spec.name}: {arguments}: {done.stderr.decode(errors='replace')[-3000:]}"
    return done.text.strip()


@pytest.fixture(scope="module")
def nodes(pair: Pair) -> Iterator[Pair]:
    """Two nodes with one device, each with its driver."""
    for node, command in zip(pair, (MAKE, SEE), strict=True):
        node.shell(f"{LOAD}; {command} >&2; test -c {DEVICE}")
    for node in pair:
        start_driver(node, dax=[REGION])
    yield pair
    for node in pair:
        node.fetch("/tmp/results", node.console.parent / f"{node.spec.name}-dax")


@pytest.fixture
def volume(nodes: Pair) -> Iterator[Volume]:
    """A volume that no node uses afterwards."""
    made = create(nodes[0], "memory", "type=memory", "consistency=strong")
    yield made
    for node in nodes:
        made.on(node, "unpublish")
    made.on(nodes[0], "delete")


def hold(node: Machine, device: str, size: int) -> Running:
    """Let a program have a device mapped, and nothing of it open."""
    running = node.start_command(*MAPPED, "hold", device, str(size), env=INSIDE_ENV)
    wait_for(lambda: b"mapped" in bytes(running.output["stdout"]), "the device is mapped", by=running)
    return running


def size(node: Machine) -> int:
    return int(node.shell("cat /sys/bus/dax/devices/dax0.0/size"))


def release(node: Machine, running: Running) -> None:
    running.kill()
    wait_for(lambda: node.run("pgrep", "-f", "inside[.]mapped hold").exit == 1, "the program is gone")


def test_what_one_kernel_stores_the_other_loads_through_its_pods_device(nodes: Pair, volume: Volume) -> None:
    told = json.loads(volume.context)
    assert (told["engine"], told["region"], int(told["size"])) == ("dax", "nvdimm", size(nodes[0]))
    folders: list[Path] = [volume.publish(node) for node in nodes]
    manifests = [json.loads(node.shell(f"cat {at}/manifest.json")) for node, at in zip(nodes, folders, strict=True)]
    assert [each["devices"][0]["path"] for each in manifests] == ["dax0.0", "dax0.0"]
    assert "strong" in manifests[0]["rule"]
    program(nodes[0], "store", folders[0], 123, "hello")
    assert program(nodes[1], "load", folders[1], 123, 5) == "hello"
    program(nodes[1], "store", folders[1], size(nodes[1]) - 4, "tail")
    assert program(nodes[0], "load", folders[0], size(nodes[0]) - 4, 4) == "tail"
    assert not volume.condition(nodes[1])["abnormal"]
    both = [
        node.start_command(*MAPPED, "rally", str(folder), who, str(ROUNDS), env=INSIDE_ENV)
        for node, folder, who in zip(nodes, folders, ("FIRST", "SECOND"), strict=True)
    ]
    assert [each.wait(PATIENCE_S).exit for each in both] == [0, 0], "each saw every number of the other"


def in_pod(node: Machine, volume: Volume, gives: str, *arguments: object) -> Finished:
    """Let a container of a new pod use the volume."""
    command = (*POD, gives, volume.ident, volume.context, *map(str, arguments))
    return node.run(*command, env=INSIDE_ENV, timeout_s=PATIENCE_S)


def test_containers_of_two_nodes_load_and_store_it_if_their_pods_were_given_it(nodes: Pair, volume: Volume) -> None:
    stored = in_pod(nodes[0], volume, "given", "store", 321, "from a pod")
    assert stored.exit == 0, stored.stderr.decode(errors="replace")[-3000:]
    loaded = in_pod(nodes[1], volume, "given", "load", 321, 10)
    assert (loaded.exit, loaded.text.strip()) == (0, "from a pod"), loaded.stderr.decode(errors="replace")[-3000:]
    ungiven = in_pod(nodes[1], volume, "ungiven", "load", 321, 10)
    assert ungiven.exit != 0, "the negative control: a folder with the device in it is no right to open it"
    assert b"Operation not permitted" in ungiven.stderr


def test_memory_that_a_node_has_is_neither_deleted_nor_given_to_another(nodes: Pair, volume: Volume) -> None:
    volume.publish(nodes[1])
    assert "in use on node node1" in refusal(nodes[0], "delete", volume.ident, volume.context)
    assert volume.ident in refusal(nodes[0], "create", "another", "type=memory")
    assert "given by node node0" in refusal(nodes[1], "create", "another", "type=memory")


def test_a_node_keeps_memory_that_a_program_has_mapped(nodes: Pair, volume: Volume) -> None:
    """By the pod's own node of the device, and by one that the runtime made: what is mapped is the same."""
    other = nodes[1]
    folder = volume.publish(other)
    through = hold(other, f"{folder}/dax0.0", size(other))
    assert "in use" in refusal(other, "unpublish", volume.ident, volume.context)
    release(other, through)
    beside = hold(other, DEVICE, size(other))
    pid = other.shell("pgrep -f 'inside[.]mapped hold'").split()[0]
    assert pid in refusal(other, "unpublish", volume.ident, volume.context)
    assert "in use on node node1" in refusal(nodes[0], "delete", volume.ident, volume.context)
    release(other, beside)
    volume.on(other, "unpublish")
    assert volume.ident not in other.shell("cat /proc/self/mountinfo; ls /run/ub-node/memory")


def test_the_next_volume_finds_nothing_of_the_last_one(nodes: Pair) -> None:
    first = create(nodes[0], "first", "type=memory")
    program(nodes[1], "store", first.publish(nodes[1]), 1 << 20, "secret")
    first.on(nodes[1], "unpublish")
    first.on(nodes[0], "delete")
    second = create(nodes[0], "second", "type=memory")
    folder = second.publish(nodes[1])
    assert program(nodes[1], "dirty", folder) == "0"
    program(nodes[1], "store", folder, 0, "kept")
    assert program(nodes[1], "dirty", folder) == "4", "a repeated call of the provisioner fills nothing again"
    assert create(nodes[0], "second", "type=memory").ident == second.ident
    assert program(nodes[1], "load", folder, 0, 4) == "kept"
    second.on(nodes[1], "unpublish")
    second.on(nodes[0], "delete")


def test_a_node_whose_power_was_cut_gives_back_what_it_had(nodes: Pair, volume: Volume) -> None:
    other = nodes[1]
    volume.publish(other)
    cut(other)
    assert "in use on node node1" in refusal(nodes[0], "delete", volume.ident, volume.context)
    other.shell(f"{LOAD}; test -c {DEVICE}")
    start_driver(other, dax=[REGION])
    wait_for(lambda: nodes[0].run(*PROGRAM, "delete", volume.ident, "{}", env=INSIDE_ENV).exit == 0, "it is given back")

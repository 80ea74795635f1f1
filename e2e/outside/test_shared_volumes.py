"""Volumes that two kernels share, and the owner's power cut: what a pod of the other node sees then and afterwards.

The wire is QEMU's; all else is real: GlusterFS, Syncthing, FUSE, locks. No figure here is one of UB hardware.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.__main__ import INSIDE_ENV
from e2e.channel import Running
from e2e.outside.conftest import wait_for
from e2e.outside.volumes import PATIENCE_S, PROGRAM, Pair, create, cut, start_driver

TIMES = 25


def count(pair: Pair, files: list[Path]) -> int:
    """Let both nodes add to the number in one file at the same time; return what each of them added together."""
    pair[0].shell(f"echo 0 > {files[0]}")
    wait_for(lambda: pair[1].shell(f"cat {files[1]} 2>/dev/null || true") == "0\n", "the other node has the file")
    both = [
        node.start_command(*PROGRAM, "count", str(file), str(TIMES), env=INSIDE_ENV)
        for node, file in zip(pair, files, strict=True)
    ]
    assert [each.wait(PATIENCE_S).exit for each in both] == [0, 0]
    return int(pair[0].shell(f"cat {files[0]}"))


def lines(running: Running) -> list[str]:
    """What an ``append`` has printed, whole lines only."""
    return bytes(running.output["stdout"]).decode().split("\n")[:-1]


@pytest.fixture(scope="module")
def nodes(pair: Pair) -> Iterator[Pair]:
    """Two nodes, each with its driver."""
    for node in pair:
        start_driver(node)
    yield pair
    for node in pair:
        node.fetch("/tmp/results", node.console.parent / f"{node.spec.name}-volumes")


def test_a_strong_volume_holds_a_counter_of_two_kernels_together(nodes: Pair) -> None:
    volume = create(nodes[0], "counter", "consistency=strong")
    assert "glusterfs" in volume.context
    files = [volume.publish(node) / "number" for node in nodes]
    assert count(nodes, files) == 2 * TIMES, "nobody read a number that the other had replaced"
    for node in nodes:
        volume.on(node, "unpublish")
    volume.on(nodes[0], "delete")


def test_an_eventual_volume_does_not(nodes: Pair) -> None:
    """The negative control of the test above: locks are a node's own there, and numbers are counted twice."""
    volume = create(nodes[0], "lost-counts", "consistency=eventual")
    files = [volume.publish(node) / "number" for node in nodes]
    assert count(nodes, files) < 2 * TIMES
    for node in nodes:
        volume.on(node, "unpublish")
    volume.on(nodes[0], "delete")


def test_a_strong_volume_whose_owner_lost_its_power_fails_until_it_is_back_and_has_lost_nothing(nodes: Pair) -> None:
    owner, other = nodes
    volume = create(owner, "strong", "consistency=strong")
    file = volume.publish(other) / "log"
    writer = other.start_command(*PROGRAM, "append", str(file), "line-", env=INSIDE_ENV)
    wait_for(lambda: len(lines(writer)) >= 5, "the other node writes", by=writer)
    cut(owner)
    wait_for(lambda: lines(writer)[-1].startswith("error"), "what cannot be written is an error", by=writer)
    start_driver(owner)
    wait_for(lambda: lines(writer)[-1].startswith("line"), "the open file goes on", by=writer)
    writer.kill()
    kept = [line for line in lines(writer) if line.startswith("line")]
    found = owner.shell(f"cat {volume.publish(owner) / 'log'}").split()
    assert set(kept) <= set(found), "a line that was on the disk is there"
    assert found == sorted(set(found), key=lambda line: int(re.sub(r"\D", "", line))), "once, and in order"


def test_an_eventual_volume_whose_owner_lost_its_power_goes_on_and_both_are_alike_afterwards(nodes: Pair) -> None:
    owner, other = nodes
    volume = create(owner, "eventual", "consistency=eventual", "maxStaleness=5s")
    here, there = volume.publish(owner), volume.publish(other)
    owner.shell(f"echo before > {here}/before")
    wait_for(lambda: "before" in other.shell(f"ls {there}"), "the other node has the file")
    wait_for(lambda: not volume.condition(other)["abnormal"], "the volume is well")
    cut(owner)
    assert other.shell(f"cat {there}/before") == "before\n", "it is read"
    other.shell(f"echo meanwhile > {there}/meanwhile")
    wait_for(lambda: bool(volume.condition(other)["abnormal"]), "what may be stale is said to be")
    start_driver(owner)
    again = volume.publish(owner)
    wait_for(lambda: "meanwhile" in owner.shell(f"ls {again}"), "what was written meanwhile arrives")
    assert owner.shell(f"cat {again}/before {again}/meanwhile") == "before\nmeanwhile\n"
    wait_for(lambda: not volume.condition(other)["abnormal"], "the volume is well again")

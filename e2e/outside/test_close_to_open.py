"""Close-to-open volumes between two real kernels: NFSv4.2, as ub-csi sets it up and takes it down.

Level: ordinary Linux; no part of it is a UB figure.
"""

from collections.abc import Iterator

import pytest

from e2e.outside.conftest import wait_for
from e2e.outside.volumes import Pair, create, start_driver

ROUNDS = 30


@pytest.fixture(scope="module")
def drivers(pair: Pair) -> Iterator[Pair]:
    running = [start_driver(node) for node in pair]
    yield pair
    for each in running:
        each.kill()


@pytest.fixture
def folders(drivers: Pair) -> Iterator[tuple[str, str]]:
    """Where one volume of node0 is published on each node; afterwards nothing of it may be left."""
    volume = create(drivers[0], "claim", "consistency=close-to-open")
    first, second = (str(volume.publish(node)) for node in drivers)
    yield first, second
    for node in drivers:
        volume.on(node, "unpublish")
    volume.on(drivers[0], "delete")
    assert volume.ident not in drivers[0].shell("exportfs -s")
    for node in drivers:
        assert volume.ident not in node.shell("cat /proc/self/mountinfo")


def test_what_was_closed_on_one_node_is_read_by_who_opens_it_next(drivers: Pair, folders: tuple[str, str]) -> None:
    assert " nfs4 " in drivers[0].shell(f"grep -F {folders[0]} /proc/self/mountinfo"), "the owner, too, so locks hold"
    told = drivers[1].shell(f"grep -F {folders[1]} /proc/self/mountinfo")
    assert "vers=4.2" in told
    for number in range(ROUNDS):
        writer, reader = (0, 1) if number % 2 else (1, 0)
        here, there = folders[writer], folders[reader]
        ways = (
            f"echo {number} > {here}/file",
            f"echo {number} > {here}/new && mv {here}/new {here}/file",
            f"rm -f {here}/file && echo {number} > {here}/file",
        )
        drivers[reader].shell(
            f"cat {there}/file {there}/absent-{number} 2>/dev/null; true"
        )  # what it may believe later
        drivers[writer].shell(ways[number % 3] + f" && echo {number} > {here}/absent-{number}")
        assert drivers[reader].shell(f"cat {there}/file {there}/absent-{number}").split() == [str(number)] * 2
    drivers[0].shell(f"printf one > {folders[0]}/log")
    drivers[1].shell(f"printf two >> {folders[1]}/log")
    assert drivers[0].shell(f"cat {folders[0]}/log") == "onetwo"


@pytest.mark.parametrize("holder", [0, 1])
def test_a_lock_of_one_node_keeps_the_other_out_also_where_the_owner_is_one_of_them(
    drivers: Pair, folders: tuple[str, str], holder: int
) -> None:
    lock = f"{folders[holder]}/lock"
    drivers[holder].shell(f"touch {lock}")
    held = drivers[holder].start_command("flock", "--close", lock, "sh", "-c", f"echo > {lock}.held; exec sleep 600")
    other = drivers[1 - holder]
    wait_for(lambda: other.run("test", "-e", f"{folders[1 - holder]}/lock.held").exit == 0, "the lock is held")
    assert other.run("flock", "--nonblock", f"{folders[1 - holder]}/lock", "true").exit == 1
    held.kill()
    wait_for(
        lambda: other.run("flock", "--nonblock", f"{folders[1 - holder]}/lock", "true").exit == 0, "the lock is free"
    )


def test_open_files_go_on_when_the_owners_server_starts_again(drivers: Pair, folders: tuple[str, str]) -> None:
    writer = drivers[1].start_command(
        "sh", "-c", f"exec > {folders[1]}/held; for i in $(seq 1 20); do echo $i; sleep 1; done"
    )
    wait_for(lambda: drivers[1].run("test", "-e", f"{folders[1]}/held").exit == 0, "the file is open")
    drivers[0].shell("systemctl restart nfs-server", timeout_s=120)
    assert writer.wait(300).exit == 0
    assert drivers[0].shell(f"cat {folders[0]}/held").split() == [str(number) for number in range(1, 21)]


def test_a_silent_owner_is_told_of_and_waited_for(drivers: Pair, folders: tuple[str, str]) -> None:
    drivers[1].shell(f"echo before > {folders[1]}/file")
    drivers[0].shell("ip link set eth0 down")
    try:
        shown = drivers[1].shell("timeout 60 /mnt/payload/ub-node/ubnode volumes")
        assert "does not answer" in shown
    finally:
        drivers[0].shell("ip link set eth0 up")
    assert drivers[1].shell(f"cat {folders[1]}/file", timeout_s=300) == "before\n"

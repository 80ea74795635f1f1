"""Files of cgroups that refuse, vanish or lie, a clock that jumps, and files of our own that are not."""

import errno
import json
import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_qos import restore, serve
from nri_qos.config import Config
from nri_qos.files import Gone, Hierarchy
from nri_qos.journal import Journal
from nri_qos.loop import Loop
from nri_qos.model import Container, Machine, Pod, Resources
from nri_qos.settings import Setting
from nri_qos.world import World
from nri_qos.writer import Writer
from tests.nri_qos.cgroups import Tree
from tests.nri_qos.conftest import container, pod
from ubhost.errors import HostFault


@pytest.fixture
def world(machine: Machine) -> World:
    world = World(Config())
    world.machine = machine
    return world


class Moody(Hierarchy):
    """Files that refuse whenever they like: ``mood`` returns the error for a file, 0 for none."""

    chance = random.Random(0)
    moods: tuple[int, ...] = ()

    def read(self, cgroup: str, file: str) -> str:
        self._be_moody(cgroup)
        return super().read(cgroup, file)

    def write(self, cgroup: str, file: str, value: str) -> None:
        self._be_moody(cgroup)
        super().write(cgroup, file, value)

    def _be_moody(self, cgroup: str) -> None:
        if cgroup and self.moods and self.chance.random() < 0.3:
            number = self.chance.choice(self.moods)
            if number == errno.ENODEV:
                raise Gone(cgroup)
            raise OSError(number, os.strerror(number))


@pytest.fixture
def files(tree: Tree) -> Moody:
    return Moody(tree.root)


@pytest.fixture
def loop(world: World, files: Moody, tmp_path: Path) -> Iterator[Loop]:
    journal = Journal(tmp_path / "journal")
    yield Loop(world, files, Writer(files, journal), journal.entries)
    journal.close()


def start(world: World, tree: Tree, name: str, qos: str) -> str:
    """Let a pod with one container run; return the folder of the pod."""
    made = pod(name, qos)
    folder = tree.pod(made)
    uid = made.uid
    sandbox = Pod(made.id, name, uid, "shop", {}, dict(made.annotations), made.linux.cgroup_parent)
    asked = container(made)
    world.add_pod(sandbox)
    running = Container(asked.id, made.id, "app", resources=Resources(shares=2), cgroups_path=asked.linux.cgroups_path)
    world.create(sandbox, running)
    tree.container(asked)
    world.started(running)
    world.version += 1
    return folder


ERRORS = (errno.EBUSY, errno.EINVAL, errno.EACCES, errno.EROFS, errno.EIO, errno.ENOSPC, errno.ENOENT, errno.ENODEV)


@pytest.mark.parametrize("moods", [ERRORS, *((number,) for number in ERRORS)], ids=str)
def test_whatever_files_refuse_for_a_while_in_the_end_they_say_what_is_wanted(
    moods: tuple[int, ...], world: World, tree: Tree, files: Moody, loop: Loop
) -> None:
    offline = [start(world, tree, f"batch{number}", "BE") for number in range(3)]
    online = start(world, tree, "web", "LS")
    files.moods, files.chance = moods, random.Random(1)
    for now in range(40):
        loop.turn(float(now))
    files.moods = ()
    for now in range(40, 500):
        loop.turn(float(now))
    for folder in offline:
        assert tree.read(folder, "cpu.weight") == "1"
        assert all(tree.read(child, "cpuset.cpus") for child in files.children(folder))
    assert tree.read(online, "cpu.weight") == "100"


@pytest.mark.parametrize("seed", range(5))
def test_a_clock_that_jumps_and_counters_that_lie_move_offline_work_within_its_bounds_only(
    seed: int, world: World, tree: Tree, loop: Loop
) -> None:
    chance = random.Random(seed)
    batch, web = start(world, tree, "batch", "BE"), start(world, tree, "web", "LS")
    now = 1000.0
    for _ in range(150):
        now += chance.choice((1.0, 1.0, 0.0, -1.0, -500.0, 1e9, 1e-9))
        if chance.random() < 0.3:
            usage = chance.choice(("", "-5", "1.5", "9" * 5000, "\0" * 99))
            tree.write(chance.choice((batch, web)), "cpu.stat", f"usage_usec {usage}")
        else:
            tree.stat(batch, chance.randrange(1 << 40), throttles=chance.randrange(9), waited=chance.randrange(1 << 30))
        loop.turn(now)
        quota = loop.seen.state.quota
        assert quota is None or 1.0 <= quota <= 8.0
        given = tree.read(batch, "cpu.max").partition(" ")[0]
        assert given == "max" or 1000 <= int(given) <= 8 * 50_000


def test_cgroups_that_vanish_and_come_back_in_the_middle_of_a_turn_are_no_error(
    world: World, tree: Tree, loop: Loop
) -> None:
    folders = [start(world, tree, f"batch{number}", "BE") for number in range(3)]
    for now in range(60):
        gone = folders[now % 3]
        if (tree.root / gone).is_dir():
            tree.remove(gone)
        else:
            tree.add(gone)
        loop.turn(float(now))
    assert not [count for count in loop._writer.counts if count[0] == "write_errors"]


def test_what_cannot_be_looked_at_is_not_taken_for_gone(tmp_path: Path) -> None:
    """Else what is to be put back there would be forgotten."""
    files = Hierarchy(tmp_path / "a/b/c")
    assert not files.exists("x")
    (tmp_path / "a/b/c").mkdir(parents=True)
    assert files.exists("x" * 300)  # ENAMETOOLONG stands for EACCES and EIO, which root does not get
    (tmp_path / "a/b/c/file").touch()
    assert not files.exists("file")
    assert not files.exists("file/below")


def test_a_disk_whose_numbers_make_no_sense_is_an_error_of_its_file(tree: Tree, tmp_path: Path) -> None:
    disk = tmp_path / "sys/class/block/sda"
    disk.mkdir(parents=True)
    (disk / "dev").write_bytes(b"\xff\xfe")
    tree.add("pod")
    writer = Writer(Hierarchy(tree.root), Journal(tmp_path / "journal"))
    writer.apply([Setting("pod", "io.max sda", "rbps=1"), Setting("pod", "cpu.weight", "1")])
    assert tree.read("pod", "cpu.weight") == "1"


@pytest.mark.parametrize(
    ("cgroup", "file"),
    [
        ("../../..", "outside"), ("pod/../../../../outside", "cpu.weight"), ("/etc", "passwd"), ("pod", "../outside"),
        ("pod", "io.max ../../outside"), ("pod\0", "cpu.weight"), ("pod", "cpu\0"), ("pod", ""), ("pod", None),
        (7, "x"),
    ],
)  # fmt: skip
def test_a_journal_that_leads_out_of_the_hierarchy_is_not_followed(
    cgroup: object, file: object, tree: Tree, tmp_path: Path
) -> None:
    tree.add("pod", cpu__weight="1")
    (tmp_path / "outside").write_text("ours")
    lines = [
        {"cgroup": cgroup, "file": file, "original": "theirs", "written": "ours", "before": "ours"},
        {"cgroup": "pod", "file": "cpu.weight", "original": "50", "written": "1", "before": "50"},
    ]
    journal = tmp_path / "journal"
    journal.write_text("\n".join(map(json.dumps, lines)))
    assert restore.from_file(tree.root, journal)["restored"] == 1
    assert tree.read("pod", "cpu.weight") == "50"
    assert (tmp_path / "outside").read_text() == "ours"


@pytest.mark.parametrize(
    "answer",
    [b"", b"{}", b"[]", b"null", b'{"state": {}, "pods": []}', b'{"version": 2}', b"[" * 100_000, b"\xff", b"{"],
)
def test_whoever_else_answers_for_nri_qos_is_one_clear_error(answer: bytes, tmp_path: Path) -> None:
    """As a daemon of another release does after half an upgrade."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / serve.SOCKET))
        listener.listen()

        def speak() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(answer)

        other = threading.Thread(target=speak)
        other.start()
        with pytest.raises(HostFault, match=r"nri-qos\.sock"):
            serve.ask(tmp_path)
        other.join()

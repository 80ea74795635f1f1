"""The short form of the eventual suite: every promise but the time, which a slow machine breaks by itself.

How late news may come is judged by ``make consistency``; here everything is counted, and waited for.
"""

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.csi_ub import netns
from tests.csi_ub.consistency import eventual
from tests.csi_ub.consistency.eventual import Watch, tree, until, whole
from tests.csi_ub.driver import Driver, StartDriver

_FILES, _VERSIONS = 5, 6
_LONGEST_S = 120


@pytest.fixture
def nodes(start: StartDriver, tmp_path: Path) -> Iterator[list[Driver]]:
    with netns.network(eventual.NODES, "10.77.7") as addresses:
        peers = [{"node": node, "address": address} for node, address in addresses.items()]
        yield [start(node, config={"peers": peers}, within=tuple(netns.inside(node))) for node in eventual.NODES]
        eventual.end_daemons(tmp_path)


@pytest.mark.kernel
@pytest.mark.skipif(not shutil.which("syncthing"), reason="Syncthing is not installed")
def test_an_eventual_volume_keeps_its_word_and_a_node_that_holds_back_is_caught(
    nodes: list[Driver],
) -> None:
    with eventual.volume(nodes, "eventual") as folders:
        assert _written_and_watched(folders) == {"torn": 0, "unread": 0, "alike": True}
        assert eventual.collide(folders) == (True, True)
        eventual.pause(nodes[0])
        assert not _is_told(folders)


def _written_and_watched(folders: list[Path]) -> dict[str, object]:
    """Let all nodes write at once while all read; return what was wrong when all had come."""
    stop, watches = threading.Event(), [Watch() for _ in folders]
    threads = [threading.Thread(target=_write, args=(me, folder)) for me, folder in enumerate(folders)]
    watchers = [
        threading.Thread(target=eventual.watch, args=(me, folder, stop, watches[me]))
        for me, folder in enumerate(folders)
    ]
    for thread in (*watchers, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    is_alike = until(lambda: len({tree(folder) for folder in folders}) == 1, _LONGEST_S) is not None
    stop.set()
    for thread in watchers:
        thread.join()
    return {
        "torn": sum(each.torn for each in watches),
        "unread": sum(each.read < _FILES for each in watches),
        "alike": is_alike and len(list(folders[0].glob("file-*"))) == _FILES * len(folders),
    }


def _write(me: int, folder: Path) -> None:
    for version in range(_VERSIONS):
        for file in range(_FILES):
            eventual.replace(folder / f"file-{me}-{file}", whole(os.urandom(10_000 * (version + 1))))


def _is_told(folders: list[Path]) -> bool:
    """Whether what the first node wrote comes to the others before they have told each other later news three times."""
    eventual.replace(folders[0] / "held-back", whole(b"news"))
    for number in range(3):
        writer, reader = folders[1 + number % 2], folders[2 - number % 2]
        eventual.replace(writer / f"later-{number}", whole(b"later news"))
        assert until((reader / f"later-{number}").exists, _LONGEST_S) is not None
    return any((folder / "held-back").exists() for folder in folders[1:])

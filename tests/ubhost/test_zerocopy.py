"""Setting up zero-copy ways for attachments, and taking them back, whatever happens in between."""

import json
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ubhost.cli import main
from ubhost.errors import Exhausted, HostFault, InvalidRequest, Unsupported
from ubhost.paths import Sockets
from ubhost.provider import Kind
from ubhost.roots import Roots
from ubhost.smc import Smc, pnet_id, user_eid
from ubhost.zerocopy import Attachment, Injection, ZeroCopy, injection

pytestmark = pytest.mark.kernel  # a segment is a mount

MIB = 1 << 20
POD = Attachment("c1", "net1", "ub", pod="default/a", device="urma_1", netdev="net1", addresses=("fd00::1",))
OTHER = replace(POD, container="c2", pod="default/b", device="urma_2", addresses=("fd00::2",))


@dataclass
class PlayedSmc(Smc):
    """What SMC would keep; ``refuse`` names a method that fails."""

    eids: list[str] = field(default_factory=list)
    pnets: list[str] = field(default_factory=list)
    is_there: bool = True
    refuse: str = ""

    def is_available(self) -> bool:
        return self.is_there

    def add_user_eid(self, eid: str) -> None:
        self._meet("add_user_eid")
        if eid not in self.eids:
            self.eids.append(eid)

    def remove_user_eid(self, eid: str) -> None:
        self._meet("remove_user_eid")
        if eid in self.eids:
            self.eids.remove(eid)

    def join(self, pnet: str, *, netdev: str, netns: int, device: str, port: int = 1) -> None:
        self._meet("join")
        self.pnets.append(f"{pnet} {netdev} {device}")

    def leave(self, pnet: str) -> None:
        self.pnets = [entry for entry in self.pnets if not entry.startswith(pnet)]

    def _meet(self, method: str) -> None:
        if self.refuse == method:
            raise Exhausted("no room")


@pytest.fixture
def roots(tmp_path: Path) -> Iterator[Roots]:
    roots = Roots(tmp_path)
    yield roots
    zero_copy = ZeroCopy(roots, PlayedSmc())
    for record in zero_copy.attachments():
        zero_copy.detach(record.container, record.ifname)


@pytest.fixture
def smc() -> PlayedSmc:
    return PlayedSmc()


@pytest.fixture
def zero_copy(roots: Roots, smc: PlayedSmc) -> ZeroCopy:
    return ZeroCopy(roots, smc)


def told(roots: Roots, container: str) -> dict[str, Any]:
    content = json.loads((roots.run / "zerocopy/pods" / container / "paths.json").read_text())
    (attachment,) = content["attachments"]
    found: dict[str, Any] = attachment
    return found


def left(roots: Roots) -> list[str]:
    folder = roots.run / "zerocopy"
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != ".lock"
    )


def test_two_pods_of_a_network_map_the_same_memory_and_others_do_not(zero_copy: ZeroCopy, roots: Roots) -> None:
    zero_copy.attach(replace(POD, shared_memory=MIB), -1)
    zero_copy.attach(replace(OTHER, shared_memory=MIB), -1)
    zero_copy.attach(replace(OTHER, container="c3", network="else", shared_memory=MIB), -1)
    sources = [{m[1]: m[0] for m in injection(roots, c).mounts}["/run/ub/shm/net1"] for c in ("c1", "c2", "c3")]
    assert sources[0] == sources[1] != sources[2]
    maps = []
    for source in sources:
        fd = os.open(f"{source}/segment", os.O_RDWR)
        maps.append(mmap.mmap(fd, MIB))
        os.close(fd)
    maps[0][:5] = b"hello"
    assert maps[1][:5] == b"hello"
    assert maps[2][:5] == bytes(5)
    for mapped in maps:
        mapped.close()


def test_a_pod_cannot_take_more_than_its_segment(zero_copy: ZeroCopy, roots: Roots) -> None:
    zero_copy.attach(replace(POD, shared_memory=MIB), -1)
    folder = Path(injection(roots, "c1").mounts[1][0])
    with pytest.raises(OSError, match="No space left"):
        (folder / "more").write_bytes(b"x")
    with (folder / "segment").open("r+b") as file:
        os.ftruncate(file.fileno(), 2 * MIB)
        assert os.pwrite(file.fileno(), bytes(2 * MIB), 0) == MIB
        with pytest.raises(OSError, match="No space left"):
            os.pwrite(file.fileno(), b"x", 2 * MIB - 1)


def test_a_segment_grows_for_a_pod_that_asks_for_more(zero_copy: ZeroCopy, roots: Roots) -> None:
    zero_copy.attach(replace(POD, shared_memory=MIB), -1)
    zero_copy.attach(replace(OTHER, shared_memory=3 * MIB), -1)
    segment = Path(injection(roots, "c1").mounts[1][0]) / "segment"
    assert segment.stat().st_size == 3 * MIB
    segment.write_bytes(bytes(3 * MIB))


def test_pods_are_told_of_one_another_and_again_when_one_goes(zero_copy: ZeroCopy, roots: Roots) -> None:
    zero_copy.attach(replace(POD, shared_memory=MIB), -1)
    assert told(roots, "c1")["peers"] == []
    zero_copy.attach(replace(OTHER, shared_memory=MIB), -1)
    (peer,) = told(roots, "c1")["peers"]
    assert (peer["name"], peer["best"], peer["addresses"]) == ("default/b", "urma", ["fd00::2"])
    assert [p["name"] for p in told(roots, "c2")["peers"]] == ["default/a"]
    zero_copy.detach("c2", "net1")
    assert told(roots, "c1")["peers"] == []
    assert set(zero_copy.documents()) == {"default/a net1"}


def test_the_user_eid_of_a_network_goes_with_its_last_pod(zero_copy: ZeroCopy, smc: PlayedSmc, roots: Roots) -> None:
    for pod in (POD, OTHER):
        assert zero_copy.attach(replace(pod, sockets=Sockets.AUTO), -1).sockets is Sockets.SMC
    assert smc.eids == [user_eid("ub")]
    zero_copy.detach("c1", "net1")
    assert smc.eids == [user_eid("ub")]
    zero_copy.detach("c2", "net1")
    zero_copy.detach("c2", "net1")
    assert smc.eids == []
    assert left(roots) == []


def test_an_rdma_device_and_the_netdev_in_the_pod_are_joined(zero_copy: ZeroCopy, smc: PlayedSmc) -> None:
    zero_copy.attach(replace(POD, kind=Kind.RDMA, device="mlx5_0", sockets=Sockets.SMC), 17)
    assert smc.pnets == [f"{pnet_id('ub')} net1 mlx5_0"]
    zero_copy.detach("c1", "net1")
    assert smc.pnets == []


def test_auto_falls_back_to_plain_tcp_without_an_error(zero_copy: ZeroCopy, smc: PlayedSmc, roots: Roots) -> None:
    smc.refuse = "add_user_eid"
    assert zero_copy.attach(replace(POD, sockets=Sockets.AUTO), -1).sockets is Sockets.OFF
    assert told(roots, "c1")["ways"] == ["urma", "ip"]
    smc.is_there = False
    assert zero_copy.attach(replace(OTHER, sockets=Sockets.AUTO), -1).sockets is Sockets.OFF


def test_what_was_asked_for_by_name_fails_and_leaves_nothing(zero_copy: ZeroCopy, smc: PlayedSmc, roots: Roots) -> None:
    smc.refuse = "add_user_eid"
    with pytest.raises(Exhausted):
        zero_copy.attach(replace(POD, sockets=Sockets.SMC, shared_memory=MIB), -1)
    assert (zero_copy.attachments(), left(roots)) == ((), [])
    with pytest.raises(Unsupported, match="module ums"):
        zero_copy.attach(replace(POD, sockets=Sockets.UMS), -1)
    with pytest.raises(InvalidRequest, match="sharedMemory"):
        zero_copy.attach(replace(POD, shared_memory=1 << 50), -1)
    with pytest.raises(InvalidRequest, match=r"'\.\./x' cannot be part"):
        zero_copy.attach(replace(POD, container="../x", shared_memory=MIB), -1)
    assert left(roots) == []


def test_a_failure_after_the_memory_was_made_takes_it_back(zero_copy: ZeroCopy, roots: Roots) -> None:
    (roots.run / "zerocopy/pods").mkdir(parents=True)
    (roots.run / "zerocopy/pods/c1").write_text("in the way")
    with pytest.raises(HostFault, match="c1"):
        zero_copy.attach(replace(POD, shared_memory=MIB), -1)
    assert str(roots.run) not in Path("/proc/self/mountinfo").read_text()
    assert zero_copy.attachments() == ()


def test_a_detach_that_failed_half_way_is_finished_by_the_next(
    zero_copy: ZeroCopy, smc: PlayedSmc, roots: Roots
) -> None:
    zero_copy.attach(replace(POD, sockets=Sockets.SMC, shared_memory=MIB), -1)
    smc.refuse = "remove_user_eid"
    with pytest.raises(Exhausted):
        zero_copy.detach("c1", "net1")
    assert len(zero_copy.attachments()) == 1
    smc.refuse = ""
    ZeroCopy(roots, smc).detach("c1", "net1")
    assert (smc.eids, left(roots)) == ([], [])
    assert str(roots.run) not in Path("/proc/self/mountinfo").read_text()


def test_a_torn_record_does_not_hold_anybody_up(zero_copy: ZeroCopy, roots: Roots) -> None:
    zero_copy.attach(replace(POD, shared_memory=MIB), -1)
    (roots.run / "zerocopy/records/c9@net1.json").write_text("{")
    zero_copy.attach(replace(OTHER, shared_memory=MIB), -1)
    zero_copy.detach("c9", "net1")
    assert [record.container for record in zero_copy.attachments()] == ["c1", "c2"]


def test_a_pod_that_asked_for_nothing_gets_nothing(zero_copy: ZeroCopy, roots: Roots) -> None:
    assert not POD.is_wanted
    zero_copy.detach("never", "net1")
    assert injection(roots, "c1") == Injection()
    assert injection(roots, "../../etc") == Injection()


def test_containers_get_the_folder_read_only_and_the_preload_library_of_the_host(
    zero_copy: ZeroCopy, roots: Roots
) -> None:
    library = roots.root / "usr/lib64/libsmc-preload.so.1"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\x7fELF")
    zero_copy.attach(replace(POD, sockets=Sockets.SMC, shared_memory=MIB), -1)
    given = injection(roots, "c1")
    pod, shared = given.mounts
    assert (pod[1], pod[2]) == ("/run/ub", ("rbind", "ro", "nosuid", "nodev"))
    assert (shared[1], shared[2]) == ("/run/ub/shm/net1", ("rbind", "rw", "nosuid", "nodev", "noexec"))
    assert (Path(pod[0]) / "shm/net1").is_dir()
    assert (Path(pod[0]) / "lib/libsmc-preload.so.1").read_bytes() == b"\x7fELF"
    assert given.env == {"UB_PATHS": "/run/ub/paths.json", "LD_PRELOAD": "/run/ub/lib/libsmc-preload.so.1"}


def test_the_command_shows_each_way_of_each_pod(
    zero_copy: ZeroCopy, roots: Roots, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UB_ROOT", str(roots.root))
    assert main(["paths"]) == 0
    assert "no pod asked" in capsys.readouterr().out
    zero_copy.attach(replace(POD, shared_memory=MIB), -1)
    zero_copy.attach(replace(OTHER, shared_memory=MIB), -1)
    main(["paths"])
    line = capsys.readouterr().out.split("\n")[1].split()
    assert line == ["default/a", "ub", "net1", "pod", "default/b", "urma", "urma", "shm", "ip"]
    main(["paths", "--json"])
    assert len(json.loads(capsys.readouterr().out)["attachments"]) == 2

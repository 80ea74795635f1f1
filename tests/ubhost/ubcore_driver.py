"""A ubcore driver that is played here, over two trees on disk, and the provider on it."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from ubhost.kernel.netns import OWN, inode, own_inode
from ubhost.model import Eid
from ubhost.netlink import Frame, acknowledgement, frames
from ubhost.provider import Kind
from ubhost.providers.ubcore import UbcoreProvider
from ubhost.roots import Roots
from ubhost.ubcore.client import Ubcore
from ubhost.ubcore.message import Attribute, Command, Message, decode

EID, ZERO = Eid.from_words(0x42454944, 1, 2, 0), Eid(0)
OTHER, BONDING = Eid.from_words(0x42454944, 1, 3, 0), Eid.from_words(7, 1, 2, 3)


class Driver:
    """Two trees of devices: the host's and one pod's. ``lies`` makes it acknowledge and do nothing."""

    family, port = 1, 2

    def __init__(self, host: Path, pod: Path) -> None:
        self.host, self.pod = host, pod
        self.is_shared = False
        self.is_old = False
        self.lies = False
        self.refuses = 0
        self.heard: list[Command] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def ask(self, request: bytes, netns: int | None = None) -> list[Frame]:
        message = decode(next(frames(request)))
        if message.command is Command.SHOW_SYSTEM and self.is_old:
            return list(frames(acknowledgement(request, errno.EOPNOTSUPP)))
        if message.command is Command.SHOW_SYSTEM:
            mode: dict[Attribute, int | str | bytes] = {Attribute.DEV_NS_MODE: int(self.is_shared)}
            return list(frames(Message(Command.SHOW_SYSTEM, mode).encode()))
        self.heard.append(message.command)
        if not self.lies and not self.refuses:
            self._do(message)
        return list(frames(acknowledgement(request, self.refuses)))

    def _do(self, message: Message) -> None:
        name = str(message.attributes[Attribute.DEV_NAME])
        if message.command is Command.EXPOSE_DEV_NS:
            put_device(self.pod, name, [ZERO] * len(list((self.host / name / "eids").iterdir())))
        elif message.command is Command.UNEXPOSE_DEV_NS:
            shutil.rmtree(self.pod / name)
        elif message.command is Command.SET_DEV_EID_NS:
            slot = f"eids/eid{message.attributes[Attribute.EID_IDX]!r}"
            is_home = inode(int(str(message.attributes[Attribute.NS_FD]))) == own_inode()
            source, target = (self.pod, self.host) if is_home else (self.host, self.pod)
            (target / name / slot).write_text((source / name / slot).read_text())
            (source / name / slot).write_text(f"{ZERO}\n")
        elif message.command is Command.SET_SL:
            folder = self.host / name / f"priority/priority{message.attributes[Attribute.PRIORITY]!r}"
            folder.mkdir(parents=True)
            (folder / "sl").write_text(f"{message.attributes[Attribute.SL]!r}\n")


def put_device(folder: Path, name: str, eids: list[Eid]) -> None:
    (folder / name / "eids").mkdir(parents=True)
    for index, eid in enumerate(eids):
        (folder / name / "eids" / f"eid{index}").write_text(f"{eid}\n")


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return Roots(tmp_path / "root")


@pytest.fixture
def driver(roots: Roots, tmp_path: Path) -> Driver:
    host = roots.sys / "class/ubcore"
    put_device(host, "bonding_dev_1", [BONDING])
    put_device(host, "udma2", [EID, ZERO])
    put_device(host, "udma3", [OTHER])
    return Driver(host, tmp_path / "pod")


@pytest.fixture
def provider(roots: Roots, driver: Driver) -> UbcoreProvider:
    @contextmanager
    def view(_: Ubcore, netns: int) -> Iterator[Path]:
        yield driver.host if inode(netns) == own_inode() else driver.pod

    return UbcoreProvider(Kind.UBCORE, roots, Ubcore(lambda: driver), view)


@pytest.fixture
def netns(tmp_path: Path) -> Iterator[int]:
    """The pod's namespace; for a driver that is played any file will do."""
    with (tmp_path / "netns").open("w") as file:
        yield file.fileno()


@pytest.fixture
def home() -> Iterator[int]:
    with OWN.open() as file:
        yield file.fileno()

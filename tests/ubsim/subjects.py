"""Three providers that pass one list of tests: in memory, a simulated node, and RDMA on a kernel that is played."""

import errno as numbers
import os
import tempfile
from pathlib import Path

import yaml

from tests.ubhost.rdma_server import Kernel, write_server
from ubhost.kernel.netns import own_inode
from ubhost.provider import Provider, Sharing
from ubhost.providers import choose
from ubhost.providers.rdma import RdmaProvider
from ubhost.rdma.netlink import RdmaNetlink
from ubsim import named_netns
from ubsim.fakes import FakeProvider
from ubsim.handles import running


class Subject:
    """A provider under test: how to let its pods come and go, and how to order a failure."""

    provider: Provider

    def pod(self, name: str) -> int:
        raise NotImplementedError

    def kill(self, name: str) -> None:
        raise NotImplementedError

    def fail(self, operation: str, errno: str, device: str) -> None:
        raise NotImplementedError


class InMemory(Subject):
    def __init__(self, folder: Path, sharing: Sharing) -> None:
        self.provider = self._fake = FakeProvider(sharing=sharing)
        self._folder = folder
        self._open: dict[str, int] = {}

    def pod(self, name: str) -> int:
        self._open[name] = os.open(self._folder / name, os.O_RDWR | os.O_CREAT)
        return self._open[name]

    def kill(self, name: str) -> None:
        self._fake.netns_gone(os.fstat(self._open[name]).st_ino)
        os.close(self._open.pop(name))

    def fail(self, operation: str, errno: str, device: str) -> None:
        self._fake.fail(operation, int(getattr(numbers, errno)), device=device)


class Daemon(Subject):
    def __init__(self, folder: Path, sharing: Sharing) -> None:
        scenario = folder / "scenario.yaml"
        scenario.write_text(yaml.safe_dump({"name": "c", "sharing": sharing.value, "nodes": [{"name": "node0"}]}))
        self._short = tempfile.TemporaryDirectory(prefix="ubsim-")  # that of pytest is too long for sockets
        self._running = running(scenario, Path(self._short.name) / "sim")
        self._node = self._running.__enter__()["node0"]
        self.provider = choose(self._node.roots, "sim")
        self._open: dict[str, int] = {}

    def close(self) -> None:
        for name in tuple(self._open):
            self.kill(name)
        self._running.__exit__(None, None, None)
        self._short.cleanup()

    def pod(self, name: str) -> int:
        named_netns.make(Path("/run/netns") / name)
        self._open[name] = os.open(f"/run/netns/{name}", os.O_RDONLY)
        return self._open[name]

    def kill(self, name: str) -> None:
        os.close(self._open.pop(name))
        named_netns.remove(Path("/run/netns") / name)

    def fail(self, operation: str, errno: str, device: str) -> None:
        self._node.fail(operation, errno, device=device)


class RdmaServer(Subject):
    """A card that can move, on a kernel that is played."""

    def __init__(self, folder: Path, sharing: Sharing) -> None:
        self._kernel = Kernel(at={"mlx5_0": own_inode()}, is_shared=sharing is Sharing.SHARED)
        self.provider = RdmaProvider(write_server(folder / "rdma"), RdmaNetlink(self._kernel.open))
        self._folder = folder

    def pod(self, name: str) -> int:
        return os.open(self._folder / name, os.O_RDWR | os.O_CREAT)

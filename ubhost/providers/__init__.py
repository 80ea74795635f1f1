"""Ways to command a UB host, and which of them this host has.

    provider = choose(Roots.from_environ())

``ubcore`` serves hardware and the simulator, over two transports; ``rdma`` ordinary RDMA servers.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ubhost.errors import InvalidRequest, NotFound, UbError, Unsupported
from ubhost.kernel.netns import inode, own_inode
from ubhost.kernel.netsysfs import sysfs_of
from ubhost.provider import Kind, Provider
from ubhost.providers.rdma import RdmaProvider
from ubhost.providers.ubcore import UbcoreProvider
from ubhost.rdma.netlink import RdmaNetlink
from ubhost.rdma.sysfs import read_rdma
from ubhost.roots import Roots
from ubhost.sysfs.attributes import Folder
from ubhost.ubcore.client import Ubcore
from ubhost.ubcore.transport import KernelChannel, SimulatorChannel

AUTO = "auto"


def choose(roots: Roots, wanted: str = AUTO) -> Provider:
    """Return the provider for this host: ``auto`` takes the first that is there of sim, ubcore, rdma.

    Raises:
        InvalidRequest: ``wanted`` is no kind of provider.
        Unsupported: what is wanted is not here; the message names everything that was looked for.
    """
    if wanted != AUTO:
        if wanted not in _PROVIDERS:
            raise InvalidRequest(f"provider {wanted!r} is unknown, expected one of auto, {', '.join(_PROVIDERS)}")
        try:
            return _PROVIDERS[wanted](roots)
        except NotFound as error:
            raise Unsupported(f"provider {wanted} is not possible here: {error}") from error
    missing = []
    for make in _PROVIDERS.values():
        try:
            return make(roots)
        except (NotFound, Unsupported) as error:
            missing.append(str(error))
    raise Unsupported(f"no UB host here: {'; '.join(missing)}")


def possible(roots: Roots) -> tuple[str, ...]:
    """Return the kinds of provider that this host has, in the order of ``auto``."""
    found = []
    for kind, make in _PROVIDERS.items():
        with suppress(UbError):
            make(roots)
            found.append(kind)
    return tuple(found)


def _sim(roots: Roots) -> Provider:
    socket = roots.simulator / "kernel.sock"
    with SimulatorChannel(socket):
        pass

    @contextmanager
    def view(ubcore: Ubcore, netns: int) -> Iterator[Path]:
        number = inode(netns)
        ubcore.show_system(netns)  # lets the simulator know the namespace, as a kernel would
        yield (roots.sys if number == own_inode() else roots.simulator / "netns" / str(number)) / "class/ubcore"

    return UbcoreProvider(Kind.SIM, roots, Ubcore(lambda: SimulatorChannel(socket)), view)


def _ubcore(roots: Roots) -> Provider:
    with KernelChannel():
        pass

    @contextmanager
    def view(_: Ubcore, netns: int) -> Iterator[Path]:
        with sysfs_of(netns) as sys:
            yield sys / "class/ubcore"

    return UbcoreProvider(Kind.UBCORE, roots, Ubcore(KernelChannel), view)


def _rdma(roots: Roots) -> Provider:
    if not read_rdma(Folder(roots.sys)):
        raise NotFound(f"no RDMA device in {roots.sys}/class/infiniband")
    return RdmaProvider(roots, RdmaNetlink())


_PROVIDERS: Mapping[str, Callable[[Roots], Provider]] = {"sim": _sim, "ubcore": _ubcore, "rdma": _rdma}

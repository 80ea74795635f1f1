"""Set up the best way for an attachment, and take it back: SMC, shared memory, and what the pod is told.

One record an attachment is written before the first change and removed after the last one is taken back, so a
``detach`` finishes what a killed ``attach`` or ``detach`` left. What several attachments share (the user EID of a
network, its segment of memory) goes with the last of them. All of it is on tmpfs and dies with the kernel state it
describes. Nothing here is on the way of a pod that did not ask for it.

    <root>/run/ub-node/zerocopy/records/<container>@<ifname>.json
    <root>/run/ub-node/zerocopy/pods/<container>/        mounted read-only at /run/ub: paths.json, lib/
    <root>/run/ub-node/zerocopy/shm/<network>/segment    mounted at /run/ub/shm/<ifname>

Source: design section 5.
"""

import contextlib
import hashlib
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from ubhost import segment, statefile
from ubhost.errors import Exhausted, HostFault, InvalidRequest, UbError
from ubhost.filelock import locked
from ubhost.model import Position, UbHost
from ubhost.paths import FOLDER, End, PeerNode, Sockets, Way, choose_sockets, document
from ubhost.provider import Kind
from ubhost.roots import Roots
from ubhost.smc import Smc, pnet_id, user_eid
from ubhost.topology import topology
from ubhost.ubse.client import Ubse

VERSION = 1
MAX_SEGMENT = 1 << 40  # bytes
LARGEST_LIBRARY = 4 << 20  # bytes
LIBRARIES = {
    Sockets.SMC: ("libsmc-preload.so.1", "libsmc-preload.so"),
    Sockets.UMS: ("libums-preload.so",),
}
LIBRARY_FOLDERS = ("usr/lib64", "usr/lib/aarch64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Attachment:
    """What is known of an attachment once it works. ``netdev`` is its name in the pod; sizes in bytes.

    ``sockets`` is what was asked for, and in a record what was chosen.
    """

    container: str
    ifname: str
    network: str
    pod: str = ""  # namespace/name
    kind: Kind = Kind.UBCORE
    device: str = ""
    netdev: str = ""
    addresses: tuple[str, ...] = ()
    eids: tuple[str, ...] = ()
    sockets: Sockets = Sockets.OFF
    shared_memory: int = 0

    @property
    def is_wanted(self) -> bool:
        return self.sockets is not Sockets.OFF or self.shared_memory > 0


@dataclass(frozen=True, slots=True)
class Injection:
    """What the containers of a pod get: mounts (source, destination, options) and environment."""

    mounts: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


class ZeroCopy:
    """The zero-copy ways of one host. Calls wait for one another; each takes milliseconds."""

    def __init__(self, roots: Roots, smc: Smc | None = None) -> None:
        self._roots = roots
        self._smc = Smc() if smc is None else smc
        self._folder = roots.run / "zerocopy"

    def attach(self, wanted: Attachment, netns: int) -> Attachment:
        """Set up what ``wanted`` asks for, all or nothing; return it with the sockets that were chosen.

        Raises:
            InvalidRequest: the segment is too large.
            Unsupported: sockets were asked for by name that this host does not have.
            Exhausted: SMC takes no further user EID.
            HostFault: the kernel refused SMC or the memory.
        """
        if not 0 <= wanted.shared_memory <= MAX_SEGMENT:
            raise InvalidRequest(f"zeroCopy.sharedMemory of {wanted.shared_memory} bytes is above {MAX_SEGMENT}")
        chosen = replace(wanted, sockets=self._sockets(wanted.sockets))
        with self._locked():
            self._write(chosen)
            try:
                chosen = self._set_up(chosen, wanted.sockets, netns)
            except BaseException:
                self._take_down(chosen)
                raise
        return chosen

    def detach(self, container: str, ifname: str) -> None:
        """Take back what ``attach`` set up, also half of it; nothing happens where there is nothing."""
        if not self._path(container, ifname).exists():
            return
        with self._locked():
            record = self._read(self._path(container, ifname))
            self._take_down(record or Attachment(container, ifname, ""))

    def attachments(self) -> tuple[Attachment, ...]:
        """Return every attachment that has a zero-copy way, by container and interface."""
        found = (self._read(path) for path in sorted((self._folder / "records").glob("*.json")))
        return tuple(record for record in found if record is not None)

    def documents(self) -> dict[str, dict[str, Any]]:
        """Return what each attachment is told, by pod (or container) and interface."""
        ends = [_end(record) for record in self.attachments()]
        nodes = self._nodes()
        return {f"{end.name} {end.ifname}": document(end, ends, nodes) for end in ends}

    def _sockets(self, asked: Sockets) -> Sockets:
        has_ums = (self._roots.sys / "module/ums").is_dir()
        return choose_sockets(
            asked, has_ums=has_ums, has_smc=asked in (Sockets.AUTO, Sockets.SMC) and self._smc.is_available()
        )

    def _set_up(self, chosen: Attachment, asked: Sockets, netns: int) -> Attachment:
        if chosen.sockets is Sockets.SMC:
            try:
                self._smc.add_user_eid(user_eid(chosen.network))
                if chosen.kind is Kind.RDMA and chosen.netdev:
                    self._smc.join(pnet_id(chosen.network), netdev=chosen.netdev, netns=netns, device=chosen.device)
            except (Exhausted, HostFault) as error:
                if asked is not Sockets.AUTO:
                    raise
                log.warning("pods of this network use plain TCP", extra={"why": str(error)})
                chosen = replace(chosen, sockets=Sockets.OFF)
                self._write(chosen)
        if chosen.shared_memory:
            segment.make(self._shared_folder(chosen.network), chosen.shared_memory)
        self._make_pod_folder(chosen)
        self._tell(chosen.network)
        return chosen

    def _take_down(self, record: Attachment) -> None:
        """Every part may be missing; what others of the network still use stays."""
        others = [r for r in self.attachments() if (r.container, r.ifname) != (record.container, record.ifname)]
        network = [r for r in others if r.network == record.network]
        if record.sockets is Sockets.SMC and not any(r.sockets is Sockets.SMC for r in network):
            self._smc.remove_user_eid(user_eid(record.network))
            if record.kind is Kind.RDMA:
                self._smc.leave(pnet_id(record.network))
        if record.shared_memory and not any(r.shared_memory for r in network):
            segment.remove(self._shared_folder(record.network))
        if not any(r.container == record.container for r in others):
            shutil.rmtree(self._pod_folder(record.container), ignore_errors=True)
        self._path(record.container, record.ifname).unlink(missing_ok=True)
        self._tell(record.network)

    def _make_pod_folder(self, record: Attachment) -> None:
        folder = self._pod_folder(record.container)
        library = self._library(record.sockets)
        try:
            (folder / "shm" / record.ifname).mkdir(parents=True, exist_ok=True)
            if library is not None:
                (folder / "lib").mkdir(exist_ok=True)
                with library.open("rb") as source:
                    (folder / "lib" / library.name).write_bytes(source.read(LARGEST_LIBRARY))
        except OSError as error:
            raise HostFault(f"cannot make {folder}: {error.strerror}") from error

    def _library(self, sockets: Sockets) -> Path | None:
        names = LIBRARIES.get(sockets, ())
        paths = (self._roots.root / folder / name for folder in LIBRARY_FOLDERS for name in names)
        return next((path for path in paths if path.is_file()), None)

    def _tell(self, network: str) -> None:
        """Write ``paths.json`` of every pod that has a peer in ``network``, each as a whole."""
        records = self.attachments()
        ends, nodes = [_end(record) for record in records], self._nodes()
        for container in {record.container for record in records if record.network == network}:
            told = [document(end, ends, nodes) for end in ends if end.container == container]
            if self._pod_folder(container).is_dir():
                statefile.write(self._pod_folder(container) / "paths.json", VERSION, {"attachments": told}, mode=0o644)

    def _nodes(self) -> tuple[PeerNode, ...]:
        """The other nodes of the super-node; none where UBSE cannot be asked."""
        ubse = Ubse(self._roots.ubse_socket, timeout_s=1)
        if not ubse.is_installed:
            return ()
        try:
            nodes, links, own = ubse.nodes(), ubse.cpu_links(), ubse.local_node().slot_id
        except UbError:
            return ()
        shown = topology(UbHost(is_ub_platform=True, position=Position(slot_id=own)), nodes, links)
        ways = frozenset({Way.URMA, Way.IP})
        return tuple(PeerNode(n.host_name, n.slot_id, n.hops, ways) for n in shown.nodes if n.slot_id != own)

    def _shared_folder(self, network: str) -> Path:
        return self._folder / "shm" / _hashed(network)

    def _pod_folder(self, container: str) -> Path:
        return self._folder / "pods" / container

    def _path(self, container: str, ifname: str) -> Path:
        for name in (container, ifname):
            if not name or "/" in name or name.startswith("."):
                raise InvalidRequest(f"{name!r} cannot be part of a file name")
        return self._folder / "records" / f"{container}@{ifname}.json"

    def _write(self, record: Attachment) -> None:
        path = self._path(record.container, record.ifname)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise HostFault(f"cannot make {path.parent}: {error.strerror}") from error
        statefile.write(path, VERSION, msgspec.to_builtins(record))

    def _read(self, path: Path) -> Attachment | None:
        """A record that is damaged tells by its name at least whose it is."""
        container, _, ifname = path.name.removesuffix(".json").partition("@")
        try:
            content = statefile.read(path, VERSION)
            return None if content is None else msgspec.convert(content, Attachment)
        except (statefile.Damaged, msgspec.ValidationError):
            return Attachment(container, ifname, "")

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return locked(self._folder / ".lock", folder_mode=0o755)


def injection(roots: Roots, container: str) -> Injection:
    """Return what the containers of sandbox ``container`` get; nothing where it has no zero-copy way."""
    here = ZeroCopy(roots)
    folder = roots.run / "zerocopy" / "pods" / container
    if not container or "/" in container or not folder.is_dir():
        return Injection()
    given: list[tuple[str, str, tuple[str, ...]]] = [(str(folder), FOLDER, ("rbind", "ro", "nosuid", "nodev"))]
    for record in here.attachments():
        if record.container == container and record.shared_memory:
            source = roots.run / "zerocopy" / "shm" / _hashed(record.network)
            options = ("rbind", "rw", "nosuid", "nodev", "noexec")
            given.append((str(source), f"{FOLDER}/shm/{record.ifname}", options))
    env = {"UB_PATHS": f"{FOLDER}/paths.json"}
    libraries = sorted(path.name for path in (folder / "lib").glob("*.so*"))
    if libraries:
        env["LD_PRELOAD"] = f"{FOLDER}/lib/{libraries[0]}"
    return Injection(tuple(given), env)


def _end(record: Attachment) -> End:
    native = Way.RDMA if record.kind is Kind.RDMA else Way.URMA
    sockets = {Sockets.SMC: {Way.SMC}, Sockets.UMS: {Way.UMS}}.get(record.sockets, set())
    memory = {Way.SHM} if record.shared_memory else set()
    return End(
        name=record.pod or record.container,
        network=record.network,
        container=record.container,
        ifname=record.ifname,
        ways=frozenset({native, Way.IP} | sockets | memory),
        addresses=record.addresses,
        eids=record.eids,
    )


def _hashed(network: str) -> str:
    return hashlib.sha256(network.encode()).hexdigest()[:32]

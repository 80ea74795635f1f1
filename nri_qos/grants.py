"""What a pod was given that neither CNI nor CSI can put into its containers: device nodes, mounts, environment.

Each grant is a record that root wrote for this one pod; what a pod says of itself gives it nothing. All containers of
the pod get it, as they share the network namespace and the volume that it belongs to.

    <root>/var/lib/ub-node/attachments/                   device nodes of the UB devices in its network namespace
    <root>/run/ub-node/zerocopy/                          paths.json, shared segments, environment of its sockets
    <root>/run/ub-node/volumes/<pod uid>@<volume>.json    device nodes of its volumes of shared memory

A record or a device node that somebody else could have written is no grant. Reads only.

Source: design sections 4, 5 and 7; NRI pkg/api/device.go: a device that a plugin adds may always be read and written.
"""

import logging
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from nri_qos.model import Container, Pod
from ubhost import statefile
from ubhost.errors import HostFault, InvalidRequest
from ubhost.kernel.beneath import open_beneath, open_folder
from ubhost.ledger import Ledger
from ubhost.record import State
from ubhost.roots import Roots
from ubhost.zerocopy import injection

VERSION = 1  # of a volume's record
SHARED_WRITE = stat.S_IWGRP | stat.S_IWOTH
_log = logging.getLogger(__name__)

Mount = tuple[str, str, tuple[str, ...]]  # source, destination, options


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A character device, as it is on the host and as the container gets it."""

    path: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Grants:
    devices: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def words(self) -> tuple[str, ...]:
        """Return what is given as a reason, none if nothing is."""
        given = [device.path for device in self.devices] + [where for _, where, _ in self.mounts] + sorted(self.env)
        return (f"its pod was given {' '.join(given)}",) if given else ()


NOTHING = Grants()


class VolumeDevice(msgspec.Struct):
    node: str  # below /dev
    permissions: str


class VolumeRecord(msgspec.Struct):
    """What the storage plugin wrote before it published the volume."""

    pod_uid: str
    devices: list[VolumeDevice] = []


def read(roots: Roots, pod: Pod, container: Container) -> Grants:
    """Return what ``container`` of ``pod`` is to have and has not got yet.

    Raises:
        UbError, OSError: a record cannot be read or is not root's; nothing is known of the others then.
    """
    ways = injection(roots, pod.id) if is_name(pod.id) else None
    nodes = dict.fromkeys([*_attached(roots, pod), *_of_volumes(roots, pod)])
    has = {(major, minor) for kind, major, minor in container.devices if kind == "c"}
    found = [device for device in _devices(roots.dev, nodes) if (device.major, device.minor) not in has]
    if ways is None:
        return Grants(tuple(found))
    return Grants(
        tuple(found),
        ways.mounts,
        {name: value for name, value in ways.env.items() if name not in container.env},
    )


def is_name(text: str) -> bool:
    """Whether ``text`` is one file and no other: what the runtime says becomes part of a path."""
    return bool(text) and "/" not in text and "\0" not in text and not text.startswith(".")


def _attached(roots: Roots, pod: Pod) -> Iterator[str]:
    """Yield the device nodes of the UB devices that are attached to the pod since this boot."""
    ledger = Ledger(roots)
    if not is_name(pod.id) or not ledger.folder.is_dir():
        return
    for record in ledger.of_container(pod.id):
        is_its_own = record.pod_uid in ("", pod.uid) and record.boot_id == ledger.boot_id
        if record.state is State.ATTACHED and not record.is_damaged and is_its_own:
            _refuse_forged(ledger.folder)
            yield from record.nodes


def _of_volumes(roots: Roots, pod: Pod) -> Iterator[str]:
    folder = roots.run / "volumes"
    if not is_name(pod.uid) or not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith(f"{pod.uid}@") and path.suffix == ".json":
            _refuse_forged(folder)
            _refuse_forged(path)
            yield from _of_volume(path, pod)


def _of_volume(path: Path, pod: Pod) -> Iterator[str]:
    try:
        record = msgspec.convert(statefile.read(path, VERSION) or {"pod_uid": ""}, VolumeRecord)
    except msgspec.ValidationError as error:
        raise HostFault(f"{path} makes no sense: {error}") from error
    if record.pod_uid != pod.uid:
        return
    for device in record.devices:
        if device.permissions == "rw":
            yield device.node
        else:  # the runtime would let root in the container write
            _log.error("only devices that may be written can be given", extra={"node": device.node, "path": str(path)})


def _refuse_forged(path: Path) -> None:
    """Raise ``HostFault`` if anybody but root can have made ``path`` what it is."""
    found = path.lstat()
    is_ours = found.st_uid in (0, os.geteuid()) and not found.st_mode & SHARED_WRITE
    if stat.S_ISLNK(found.st_mode) or not is_ours:
        raise HostFault(f"{path} is a link, or others than root can write it: it gives nothing")


def _devices(dev: Path, nodes: Mapping[str, None]) -> Iterator[DeviceNode]:
    if not nodes:
        return
    folder = open_folder(dev)
    try:
        for node in nodes:
            yield from _below(folder, node, "/dev")
    finally:
        os.close(folder)


def _below(folder: int, node: str, where: str, *, into: bool = True) -> Iterator[DeviceNode]:
    """Yield the character device ``node``, or those in the folder of that name; no link is followed, none leads out."""
    try:
        fd = open_beneath(folder, node, os.O_PATH | os.O_NOFOLLOW)
    except (OSError, InvalidRequest) as error:
        _log.warning("a device node cannot be given", extra={"node": f"{where}/{node}", "error": str(error)})
        return
    try:
        found = os.fstat(fd)
        if stat.S_ISCHR(found.st_mode):
            path, mode = os.path.normpath(f"{where}/{node}"), stat.S_IMODE(found.st_mode)
            number = os.major(found.st_rdev), os.minor(found.st_rdev)
            yield DeviceNode(path, *number, mode, found.st_uid, found.st_gid)
        elif stat.S_ISDIR(found.st_mode) and into:
            for name in sorted(os.listdir(f"/proc/self/fd/{fd}")):  # noqa: PTH208 - O_PATH cannot be listed itself
                yield from _below(fd, name, f"{where}/{node}", into=False)
    finally:
        os.close(fd)

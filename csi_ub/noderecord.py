"""What this node was asked to do with a volume: ``<root>/run/ub-node/volumes/<volume id>.json``.

The record says what was wanted, so that a repeated call can be told from a different one; whether it is done, only
the mount table says. It is written before the first mount, and dies with the mounts at a reboot. It holds no secret:
mount flags are kept as the attributes they became.
"""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from csi_ub.model import AccessMode, VolumeType, is_own_id
from csi_ub.mountflags import options
from ubhost import statefile
from ubhost.errors import HostFault
from ubhost.mounttable import Attribute, Mount, Origin

_VERSION = 1

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Use:
    """How a path was asked for: the arguments that a repeated call must repeat."""

    mode: AccessMode
    attributes: Attribute
    mount_group: int | None = None

    def __str__(self) -> str:
        group = "" if self.mount_group is None else f" for group {self.mount_group}"
        return f"{self.mode.name} with {options(self.attributes)}{group}"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One volume on this node; the keys are paths as the mount table spells them.

    ``origin`` is what every mount of the volume shows, ``former`` what mounts showed whose daemon died since;
    ``context`` says how the volume is reached.
    """

    volume: str
    context: dict[str, str]
    origin: Origin
    former: tuple[Origin, ...] = ()
    staged: dict[str, Use] = field(default_factory=dict)
    published: dict[str, Use] = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        """Whether it is published somewhere to write."""
        return any(not use.attributes & Attribute.RDONLY for use in self.published.values())

    def at_origin(self, origin: Origin) -> "NodeRecord":
        """Return the record of a volume that shows ``origin`` now: what it showed before is dead."""
        if self.origin == origin:
            return self
        former = (*(each for each in self.former if each != origin), self.origin)
        return replace(self, origin=origin, former=former)

    @property
    def is_block(self) -> bool:
        return self.context.get("type") == VolumeType.BLOCK.value

    def still_published(self, table: Iterable[Mount], devices: frozenset[Origin] = frozenset()) -> list[str]:
        """Return where it was published, and is by ``table``: pods have it, or one of its ``devices``."""
        mounted = {mount.target for mount in table if mount.origin in {self.origin, *self.former, *devices}}
        return sorted(mounted & set(self.published))

    @property
    def is_idle(self) -> bool:
        return not self.staged and not self.published


class NodeRecords:
    """The records of one node. The caller holds the lock of the volume."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, volume_id: str) -> NodeRecord | None:
        """Return the record, or ``None``; a damaged one counts as none, the mount table still tells what is there."""
        path = self._path(volume_id)
        try:
            content = statefile.read(path, _VERSION)
            return None if content is None else msgspec.convert(content, NodeRecord)
        except (statefile.Damaged, msgspec.ValidationError) as error:
            log.warning("unreadable record", extra={"path": str(path), "error": str(error)})
            return None

    def all(self) -> Iterator[NodeRecord]:
        """Yield the record of every volume on this node, in the order of ids."""
        for path in sorted(self._folder.glob("*.json")):
            if is_own_id(path.stem) and (record := self.read(path.stem)):
                yield record

    def write(self, record: NodeRecord) -> None:
        """Replace the record; an idle one is removed."""
        path = self._path(record.volume)
        if record.is_idle:
            path.unlink(missing_ok=True)
        else:
            statefile.write(path, _VERSION, msgspec.to_builtins(record), durable=False)  # mounts do not survive either

    def _path(self, volume_id: str) -> Path:
        if not is_own_id(volume_id):  # a name may be anything a caller sent
            volume_id = hashlib.sha256(volume_id.encode()).hexdigest()
        return self._folder / f"{volume_id}.json"


@dataclass(frozen=True, slots=True)
class _Debt:
    volume: str
    context: dict[str, str]


@dataclass(frozen=True, slots=True)
class Debts:
    """Volumes that this node has attached, as a list that survives a reboot: ``folder`` holds one file for each.

    After a reboot nobody unstages what is no longer mounted, and the owner would keep the volume for us for ever.
    """

    folder: Path

    def add(self, volume_id: str, context: Mapping[str, str], *, durable: bool = True) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = {"volume": volume_id, "context": dict(context)}
        statefile.write(self._path(volume_id), _VERSION, content, durable=durable)

    def remove(self, volume_id: str) -> None:
        self._path(volume_id).unlink(missing_ok=True)

    def all(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the ids and the contexts of attached volumes; an unreadable file is logged and left out."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                content = statefile.read(path, _VERSION)
                debt = None if content is None else msgspec.convert(content, _Debt)
            except (HostFault, msgspec.ValidationError) as error:
                log.warning("unreadable record", extra={"path": str(path), "error": str(error)})
                continue
            if debt:
                yield debt.volume, debt.context

    def _path(self, volume_id: str) -> Path:
        return self.folder / f"{volume_id}.json"

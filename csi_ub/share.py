"""The share of a volume: the folder that holds its bytes, and beside them who uses it.

    data/     what pods see
    nodes/    one attachment for each node that uses the volume

Whoever reaches the bytes reaches the attachments too, so the agreement about who may use a volume is as strong as the
volume.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from csi_ub.locks import hold
from csi_ub.model import Attachment, owner_tag
from csi_ub.reasons import InUse
from csi_ub.shelf import VERSION
from ubhost import statefile
from ubhost.errors import NotFound
from ubhost.kernel.beneath import open_beneath


@dataclass(frozen=True, slots=True)
class Share:
    """The open share of a volume: ``descriptor`` (O_PATH), a ``path`` through it, and the folder of its locks.

    ``is_one_machine``: all nodes that use it run on one kernel, so an attachment of another boot is void.
    """

    volume: str
    path: Path
    descriptor: int
    locks: Path
    is_one_machine: bool = True

    def open_data(self) -> int:
        """Return a descriptor of the folder that pods see, good for binding.

        Raises:
            NotFound: it has gone.
        """
        try:
            return open_beneath(self.descriptor, "data", os.O_PATH | os.O_DIRECTORY)
        except OSError:
            raise NotFound(f"the data of volume {self.volume} has gone") from None

    def attach(self, attachment: Attachment) -> None:
        """Note that a node uses the volume; the same node may say so again.

        Raises:
            InUse: another node has it, and one of the two wants it for itself.
            NotFound: the volume was deleted just now.
            Busy: another call is working on it.
        """
        with hold(self.locks, f"volume {self.volume}"):
            for other in self.attachments():
                if other.node == attachment.node or (self.is_one_machine and other.boot != attachment.boot):
                    continue
                if other.claim.collides(attachment.claim):
                    raise InUse(f"volume {self.volume} is in use on node {other.node} as {other.mode.name}")
            here = str(self.path.readlink())
            if "/trash/" in here or here.endswith(" (deleted)"):
                raise NotFound(f"volume {self.volume} does not exist any more")
            durable = not self.is_one_machine  # what a reboot makes void need not outlive it
            statefile.write(self._file(attachment.node), VERSION, msgspec.to_builtins(attachment), durable=durable)

    def detach(self, node: str) -> None:
        """Forget that a node uses the volume; it may be forgotten already."""
        self._file(node).unlink(missing_ok=True)

    def attachments(self) -> tuple[Attachment, ...]:
        """Return the nodes that use the volume, in the order of their tags."""
        return attachments(self.path)

    def _file(self, node: str) -> Path:
        return self.path / "nodes" / f"{owner_tag(node)}.json"


def attachments(share: Path) -> tuple[Attachment, ...]:
    """Return the nodes that use the volume of ``share``, in the order of their tags.

    Raises:
        HostFault: a note cannot be read, so that somebody may use it of whom nobody knows.
    """
    found = []
    for path in sorted((share / "nodes").glob("[0-9a-f]*.json")):
        content = statefile.read(path, VERSION)
        if content is None:
            continue
        try:
            found.append(msgspec.convert(content, Attachment))
        except msgspec.ValidationError as error:
            raise statefile.Damaged(f"{path.resolve()} does not say which node uses the volume: {error}") from error
    return tuple(found)


def boot_id() -> str:
    """Return what tells this run of the kernel from every other: mounts do not outlive it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()

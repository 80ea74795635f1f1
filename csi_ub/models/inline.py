"""A model right in a pod's manifest: an inline ephemeral volume that shows a model volume which exists already.

The pod's author names the model by the id of its volume, which any node understands that keeps copies, or on its owner
by name. Nothing is made for the pod: the model is staged once a node, and each pod gets a read-only mount of it. The
attributes come from the pod's author, so nothing but the name is taken from them.

One record a pod below ``<run>/inline`` says which model it got: kubelet tells no more than the handle when it ends.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from csi_ub import inline
from csi_ub.engines.syncthing import SyncthingEngine
from csi_ub.locks import hold
from csi_ub.model import AccessMode, Capability, Consistency, VolumeType, is_own_id, is_owned_by
from csi_ub.nodevolumes import NodeVolumes
from csi_ub.parameters import by_people
from ubhost import statefile
from ubhost.errors import Conflict, HostFault, InvalidRequest, NotFound

_VERSION = 1


def model_named(context: Mapping[str, str]) -> str:
    """Return the model that an inline volume asks for.

    Raises:
        InvalidRequest: it asks for anything else; the message names every wrong attribute.
    """
    given = by_people(context)
    wrong = [f"unknown attribute {key!r}" for key in sorted(given.keys() - {"type", "model"})]
    if given.get("type", VolumeType.MODEL.value) != VolumeType.MODEL.value:
        wrong.append(f"type is {given['type']!r}, not model")
    if not given.get("model"):
        wrong.append("model is missing: the id or the name of a model volume")
    if wrong:
        raise InvalidRequest(f"inline volume: {'; '.join(wrong)}")
    return given["model"]


@dataclass(frozen=True, slots=True)
class InlineModels:
    """The models that pods of this node got by their manifests."""

    node: NodeVolumes

    def publish(self, handle: str, name: str, target: str, capability: Capability) -> None:
        """Show model ``name`` at ``target``; nothing happens if that pod has it there.

        Raises:
            NotFound: there is no such model.
            InvalidRequest: it is a volume of another type.
            Conflict: the pod's volume shows another model.
        """
        volume, context = self._find(name)
        wanted = replace(capability, mode=AccessMode.MULTI_NODE_READER_ONLY)
        with hold(self.node.inline, f"inline {volume}"):
            record = self._read(handle)
            if record and record["volume"] != volume:
                raise Conflict(f"inline volume {handle} shows model {record['volume']}, not {volume}")
            statefile.write(self._file(handle), _VERSION, {"volume": volume}, durable=False)
            inline.show(self.node, volume, target, wanted, context, readonly=True)

    def unpublish(self, handle: str, target: str) -> bool:
        """Take the model away from ``target``, and from this node with its last pod; whether ``handle`` was ours."""
        record = self._read(handle)
        if record is None:
            return False
        volume = record["volume"]
        with hold(self.node.inline, f"inline {volume}"):
            self.node.unpublish(volume, target)
            if not any(each == volume for other, each in self._all() if other != self._file(handle)):
                inline.let_go(self.node, volume)
            self._file(handle).unlink(missing_ok=True)
        return True

    def _find(self, name: str) -> tuple[str, Mapping[str, str]]:
        """Return the id and the context of a model; of another node's we know what is the same for all copies."""
        volumes = self.node.volumes
        if found := volumes.model(name):
            reach = volumes.reach(*found)
            return reach.volume, reach.context
        owner = next((each for each in volumes.others if is_own_id(name) and is_owned_by(name, each)), None)
        if owner is None:
            raise NotFound(f"model {name!r} does not exist on node {volumes.node}, and is no id of a peer's volume")
        model, eventual = VolumeType.MODEL.value, Consistency.EVENTUAL.value
        return name, {"engine": SyncthingEngine.name, "owner": owner, "type": model, "consistency": eventual}

    def _all(self) -> Iterator[tuple[Path, str]]:
        for path in self.node.inline.glob("*.json"):
            with suppress(HostFault):
                content = statefile.read(path, _VERSION)
                if content:
                    yield path, str(content["volume"])

    def _read(self, handle: str) -> dict[str, str] | None:
        return statefile.read(self._file(handle), _VERSION)

    def _file(self, handle: str) -> Path:
        return self.node.inline / f"{hashlib.sha256(handle.encode()).hexdigest()}.json"

"""Space right in a pod's manifest: an inline ephemeral volume, made when it is published and gone with its pod.

The attributes come from the pod's author: nothing but a size is taken from them, and that is bounded by the driver's
configuration. The volume lies in a pool like any other, under a name made of the pod's handle. So what kubelet tells
when the pod ends, the handle and the path, is enough to find and remove it, also after a restart or a reboot.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from csi_ub import inline
from csi_ub.locks import hold
from csi_ub.model import Capability, Spec, Volume
from csi_ub.nodevolumes import NodeVolumes
from csi_ub.parameters import by_people
from csi_ub.pool import Pool
from csi_ub.reasons import OutOfRange
from ubhost import quantity
from ubhost.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Scratch:
    """The scratch volumes of pods of this node; one has at most ``largest`` bytes, and so many if it says nothing."""

    node: NodeVolumes
    largest: int

    def publish(
        self, handle: str, context: Mapping[str, str], target: str, capability: Capability, *, readonly: bool
    ) -> None:
        """Make the volume of ``handle``, if it is not there, and show it at ``target``.

        Raises:
            InvalidRequest: an attribute is none that a pod may give.
            OutOfRange: it wants more than a pod may have.
            Exhausted: the pool has not so much left.
        """
        size = _size(context, self.largest)
        with hold(self.node.inline, f"inline {handle}"):
            found = self.find(handle)
            volume, pool = found or self._make(handle, size)
            reach = self.node.volumes.reach(volume, pool)
            try:
                inline.show(self.node, volume.id, target, capability, reach.context, readonly=readonly)
            except BaseException:
                if found is None:  # nobody would come back for it; at the target is nothing of ours
                    self._remove(volume, pool)
                raise

    def unpublish(self, handle: str, target: str) -> bool:
        """Take the volume away with all it holds; whether ``handle`` was one of ours."""
        with hold(self.node.inline, f"inline {handle}"):
            found = self.find(handle)
            if found:
                self.node.unpublish(found[0].id, target)
                self._remove(*found)
            return found is not None

    def find(self, handle: str) -> tuple[Volume, Pool] | None:
        """Return the volume of a pod's handle."""
        for pool in self.node.volumes.pools:
            volume = pool.volumes.called(_name(handle))
            if volume and volume.is_inline:
                return volume, pool
        return None

    def _make(self, handle: str, size: int) -> tuple[Volume, Pool]:
        pools = self.node.volumes.pools
        pool = next((each for each in pools if each.space.has_quota), pools[0])
        want = Volume(
            id="",
            name=_name(handle),
            owner=self.node.volumes.node,
            pool=pool.name,
            spec=replace(Spec(), engine="bind"),
            size=pool.space.rounded(size, 0),
            created=int(time.time()),
            is_inline=True,
        )
        pool.refuse_too_large(size)
        with pool.volumes.name_lock(want.name):
            return pool.create(want), pool

    def _remove(self, volume: Volume, pool: Pool) -> None:
        inline.let_go(self.node, volume.id)
        engine = self.node.volumes.engines.named(volume.engine)
        pool.delete(volume.id, lambda it: engine.retire(it, pool), lambda it: engine.prepare(it, pool))


def _name(handle: str) -> str:
    return f"inline {handle}"


def _size(context: Mapping[str, str], largest: int) -> int:
    given = by_people(context)
    if unknown := sorted(given.keys() - {"size", "type"}):
        raise InvalidRequest(f"inline volume: unknown attribute {', '.join(map(repr, unknown))}; a pod may give size")
    if given.get("type", "filesystem") != "filesystem":
        raise InvalidRequest(f"inline volume: type is {given['type']!r}, not filesystem, or model with a model's name")
    if "size" not in given:
        return largest
    try:
        size = quantity.size(given["size"])
    except InvalidRequest as error:
        raise InvalidRequest(f"inline volume: size: {error}") from None
    if size == 0:
        raise InvalidRequest("inline volume: size is 0")
    if size > largest:
        raise OutOfRange(f"inline volume: {size} bytes are more than the {largest} of inline_limit_bytes")
    return size

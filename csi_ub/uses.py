"""Which uses of a volume its pods can have: one judgement, for everyone who is asked."""

from collections.abc import Iterable, Mapping

from csi_ub.model import Capability, Consistency, VolumeType, Writers
from csi_ub.mountflags import attributes
from csi_ub.noderecord import NodeRecord, Use
from csi_ub.reasons import InUse
from ubhost.errors import InvalidRequest, Unsupported
from ubhost.mounttable import Attribute


def unsupported(wanted: Iterable[Capability], kind: VolumeType, consistency: Consistency) -> str:
    """Return why a volume cannot be used in one of these ways; "" if it can in all of them."""
    return next((why for each in wanted if (why := _refusal(each, kind, consistency))), "")


def refuse_writing(volume_id: str, context: Mapping[str, str], node: str) -> None:
    """Raise ``Unsupported`` if the volume is written on its owner alone (``writers: single``) and ``node`` is another.

    With one place to write there are no conflicts.
    """
    if is_read_only_on(context, node):
        raise Unsupported(
            f"volume {volume_id} has writers: single: pods write it on node {context['owner']}, on node {node} they "
            "mount it read-only"
        )


def is_read_only_on(context: Mapping[str, str], node: str) -> bool:
    """Whether the volume may only be read on ``node``."""
    return context.get("writers") == Writers.SINGLE.value and context.get("owner") != node


def use_for(capability: Capability, context: Mapping[str, str], *, is_read_only: bool, has_devices: bool) -> Use:
    """Return the use that a call asks for. Pods never write to a model: its versions come by ``ubnode model push``.

    ``has_devices``: the volume consists of device nodes, all made by us, as the one of a raw device is.

    Raises:
        InvalidRequest: a mount flag is none that we know.
        Unsupported: the volume cannot be used like that.
    """
    kind = VolumeType(context.get("type", VolumeType.FILESYSTEM.value))
    granted = attributes(capability, is_read_only=is_read_only or kind is VolumeType.MODEL)
    if has_devices or capability.is_block:
        granted &= ~Attribute.NODEV
    if why := unsupported([capability], kind, Consistency(context.get("consistency", Consistency.STRONG.value))):
        raise Unsupported(why)
    return Use(capability.mode, granted, capability.mount_group)


def refuse_second_target(record: NodeRecord, use: Use, target: str, published: Iterable[str]) -> None:
    """Raise ``InUse`` if one of two targets on this node wants the volume for itself (CSI spec, NodePublishVolume)."""
    for other in published:
        if other != target and (use.mode.is_single_target or record.published[other].mode.is_single_target):
            raise InUse(f"volume {record.volume} is published at {other} as {record.published[other].mode.name}")


def _refusal(wanted: Capability, kind: VolumeType, consistency: Consistency) -> str:
    is_model = kind is VolumeType.MODEL
    if kind is VolumeType.BLOCK and not wanted.is_block:
        return "a volume of type block is a raw device: ask for volumeMode: Block"
    if wanted.is_block and kind is not VolumeType.BLOCK:
        return f"a volume of type {kind.value} has no block device"
    if is_model and not wanted.mode.is_read_only:
        return f"access mode {wanted.mode.name} is not for type model: pods only read it, ask for ReadOnlyMany"
    if kind is VolumeType.MEMORY and wanted.mode.is_single_node:
        return f"access mode {wanted.mode.name} is not for type memory: it is shared by nodes, ask for ReadWriteMany"
    if consistency is Consistency.EVENTUAL and wanted.mode.is_single_node:
        return f"access mode {wanted.mode.name} needs consistency strong: eventual copies cannot keep a second node out"
    try:
        attributes(wanted, is_read_only=is_model)
    except InvalidRequest as error:
        return str(error)
    return ""

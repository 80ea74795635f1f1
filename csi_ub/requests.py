"""CSI messages to our values, with the checks that need nothing but the message."""

from collections.abc import Iterable

from ubproto.csi.v1 import csi_pb2

from csi_ub.model import AccessMode, Capability, CapacityRange
from csi_ub.reasons import OutOfRange
from ubhost.errors import InvalidRequest


def required(**fields: object) -> None:
    """Raise ``InvalidRequest`` for the first field, in the order given, that is empty."""
    for name, value in fields.items():
        if not value:
            raise InvalidRequest(f"{name} is missing")


def capability(message: csi_pb2.VolumeCapability) -> Capability:
    """Return one capability.

    Raises:
        InvalidRequest: no access type, no known access mode, or a mount group that is no gid.
    """
    try:
        mode = AccessMode(message.access_mode.mode)
    except ValueError:
        raise InvalidRequest(f"access mode {message.access_mode.mode} is unknown") from None
    match message.WhichOneof("access_type"):
        case "block":
            return Capability(mode, is_block=True)
        case "mount":
            mount = message.mount
            return Capability(mode, False, mount.fs_type, tuple(mount.mount_flags), _gid(mount.volume_mount_group))
        case None:
            raise InvalidRequest("a volume capability has neither block nor mount")


def one_capability(request: csi_pb2.NodeStageVolumeRequest | csi_pb2.NodePublishVolumeRequest) -> Capability:
    """Return the capability of a node request.

    Raises:
        InvalidRequest: there is none, or see ``capability``. (A message field is true in Python even if it is not set.)
    """
    required(volume_capability=request.HasField("volume_capability"))
    return capability(request.volume_capability)


def capabilities(messages: Iterable[csi_pb2.VolumeCapability]) -> tuple[Capability, ...]:
    """Return all of them; see ``capability``.

    Raises:
        InvalidRequest: there is none, or some ask for a block device and some for a file system.
    """
    found = tuple(capability(message) for message in messages)
    required(volume_capabilities=found)
    if len({each.is_block for each in found}) > 1:
        raise InvalidRequest("volume_capabilities ask for block and mount at once")
    return found


def capacity(
    request: csi_pb2.CreateVolumeRequest | csi_pb2.ControllerExpandVolumeRequest | csi_pb2.NodeExpandVolumeRequest,
) -> CapacityRange:
    """Return the sizes asked for; an absent range is all zero.

    Raises:
        InvalidRequest: there is a range, with no size in it.
        OutOfRange: a size is negative, or more is required than the limit allows.
    """
    if not request.HasField("capacity_range"):
        return CapacityRange()
    sizes = CapacityRange(request.capacity_range.required_bytes, request.capacity_range.limit_bytes)
    if sizes == CapacityRange():
        raise InvalidRequest("capacity_range has neither required_bytes nor limit_bytes")
    if sizes.required < 0 or sizes.limit < 0:
        raise OutOfRange(f"capacity of {sizes.required} to {sizes.limit} bytes is negative")
    if sizes.limit and sizes.required > sizes.limit:
        raise OutOfRange(f"{sizes.required} bytes are required, but the limit is {sizes.limit}")
    return sizes


def _gid(text: str) -> int | None:
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) >= 2**32 - 1:
        raise InvalidRequest(f"volume_mount_group {text!r} is not a group id")
    return int(text)

"""Our values to CSI messages."""

from collections.abc import Callable, Iterable, Mapping

from google.protobuf.timestamp_pb2 import Timestamp
from ubproto.csi.v1 import csi_pb2

from csi_ub.model import Group, Snapshot, Volume
from ubhost.errors import UbError


def volume(
    volume: Volume, capacity: int, context: Mapping[str, str], places: Iterable[Mapping[str, str]]
) -> csi_pb2.Volume:
    """Return what the cluster keeps of a volume; ``capacity`` in bytes, 0 is unknown."""
    answer = csi_pb2.Volume(
        volume_id=volume.id,
        capacity_bytes=capacity,
        volume_context=context,
        accessible_topology=[csi_pb2.Topology(segments=place) for place in places],
    )
    if volume.source and volume.source.is_snapshot:
        answer.content_source.snapshot.snapshot_id = volume.source.id
    elif volume.source:
        answer.content_source.volume.volume_id = volume.source.id
    return answer


def snapshot(snapshot: Snapshot) -> csi_pb2.Snapshot:
    """Return a snapshot; one that has a record is ready."""
    return csi_pb2.Snapshot(
        snapshot_id=snapshot.id,
        source_volume_id=snapshot.volume,
        size_bytes=snapshot.size,
        group_snapshot_id=snapshot.group,
        creation_time=Timestamp(seconds=snapshot.created),
        ready_to_use=True,
    )


def group(group: Group) -> csi_pb2.VolumeGroupSnapshot:
    """Return a group of snapshots; one that has a record is ready, with all its members."""
    return csi_pb2.VolumeGroupSnapshot(
        group_snapshot_id=group.id,
        snapshots=[snapshot(member) for member in group.members],
        creation_time=Timestamp(seconds=group.created),
        ready_to_use=True,
    )


def condition(verify: Callable[[], None]) -> csi_pb2.VolumeCondition:
    """Return the condition of a volume: abnormal with what ``verify`` raises."""
    try:
        verify()
    except UbError as error:
        return csi_pb2.VolumeCondition(abnormal=True, message=str(error))
    return csi_pb2.VolumeCondition(abnormal=False, message="the volume is well")

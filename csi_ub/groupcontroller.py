"""The GroupController service: snapshots of several volumes at one moment."""

import time
from collections.abc import Iterable

import grpc
from ubproto.csi.v1 import csi_pb2, csi_pb2_grpc

from csi_ub import answers, parameters
from csi_ub.model import Group, Snapshot, new_id
from csi_ub.ownvolumes import OwnVolumes
from csi_ub.pool import Pool
from csi_ub.requests import required
from ubhost.errors import Conflict, InvalidRequest, NotFound, Unsupported

_Rpc = csi_pb2.GroupControllerServiceCapability.RPC


class GroupController(OwnVolumes, csi_pb2_grpc.GroupControllerServicer):
    def GroupControllerGetCapabilities(
        self, request: csi_pb2.GroupControllerGetCapabilitiesRequest, context: grpc.ServicerContext
    ) -> csi_pb2.GroupControllerGetCapabilitiesResponse:
        rpc = _Rpc(type=_Rpc.CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT)
        return csi_pb2.GroupControllerGetCapabilitiesResponse(
            capabilities=[csi_pb2.GroupControllerServiceCapability(rpc=rpc)]
        )

    def CreateVolumeGroupSnapshot(
        self, request: csi_pb2.CreateVolumeGroupSnapshotRequest, context: grpc.ServicerContext
    ) -> csi_pb2.CreateVolumeGroupSnapshotResponse:
        required(name=request.name, source_volume_ids=request.source_volume_ids)
        parameters.refuse_all(request.parameters)
        wanted = set(request.source_volume_ids)
        with self.volumes.named(request.name, lambda pool: pool.groups) as found:
            if found:
                group = found[0]
                if {each.volume for each in group.members} != wanted:
                    raise Conflict(f"group snapshot {group.name!r} exists, of other volumes")
            else:
                group = self._take(request.name, sorted(wanted))
        return csi_pb2.CreateVolumeGroupSnapshotResponse(group_snapshot=answers.group(group))

    def DeleteVolumeGroupSnapshot(
        self, request: csi_pb2.DeleteVolumeGroupSnapshotRequest, context: grpc.ServicerContext
    ) -> csi_pb2.DeleteVolumeGroupSnapshotResponse:
        required(group_snapshot_id=request.group_snapshot_id)
        found = self._find(request.group_snapshot_id)
        if found:
            _refuse_others(found[0], request.snapshot_ids)
            found[1].groups.delete(request.group_snapshot_id, lambda _: None)
        else:
            self.volumes.refuse_foreign(request.group_snapshot_id)
        return csi_pb2.DeleteVolumeGroupSnapshotResponse()

    def GetVolumeGroupSnapshot(
        self, request: csi_pb2.GetVolumeGroupSnapshotRequest, context: grpc.ServicerContext
    ) -> csi_pb2.GetVolumeGroupSnapshotResponse:
        required(group_snapshot_id=request.group_snapshot_id)
        found = self._find(request.group_snapshot_id)
        if found is None:
            raise NotFound(f"group snapshot {request.group_snapshot_id!r} does not exist")
        _refuse_others(found[0], request.snapshot_ids)
        return csi_pb2.GetVolumeGroupSnapshotResponse(group_snapshot=answers.group(found[0]))

    def _find(self, group_id: str) -> tuple[Group, Pool] | None:
        for pool in self.volumes.pools:
            if group := pool.groups.find(group_id):
                return group, pool
        return None

    def _take(self, name: str, volume_ids: list[str]) -> Group:
        """Take snapshots under a group name that is free; see ``to_copy``.

        Raises:
            Unsupported: the volumes lie in several pools.
        """
        found = [self.to_copy(volume_id) for volume_id in volume_ids]
        pool = found[0][1]
        if others := sorted({each.name for _, each in found} - {pool.name}):
            raise Unsupported(f"the volumes lie in pools {pool.name}, {', '.join(others)}: a group has one")
        now, id_ = int(time.time()), new_id("ug", self.volumes.node)
        members = tuple(
            Snapshot(new_id("us", volume.owner), "", volume.owner, pool.name, volume.id, volume.size, now, id_)
            for volume, _ in found
        )
        return pool.snapshot_together(Group(id_, name, self.volumes.node, pool.name, members, now))


def _refuse_others(group: Group, snapshot_ids: Iterable[str]) -> None:
    """Refuse a caller who thinks that other snapshots are in the group; who names none does not say."""
    given = set(snapshot_ids)
    if given and given != {each.id for each in group.members}:
        raise InvalidRequest(f"group snapshot {group.id} has other snapshots than those named")

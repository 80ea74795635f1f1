"""Snapshots: the part of the Controller service about them."""

import time

import grpc
from ubproto.csi.v1 import csi_pb2

from csi_ub import answers, parameters
from csi_ub.model import Snapshot
from csi_ub.ownvolumes import OwnVolumes
from csi_ub.paging import page
from csi_ub.requests import required
from ubhost.errors import Conflict, InvalidRequest, NotFound


class Snapshots(OwnVolumes):
    def CreateSnapshot(
        self, request: csi_pb2.CreateSnapshotRequest, context: grpc.ServicerContext
    ) -> csi_pb2.CreateSnapshotResponse:
        required(name=request.name, source_volume_id=request.source_volume_id)
        parameters.refuse_all(request.parameters)
        with self.volumes.named(request.name, lambda pool: pool.snapshots) as found:
            if found:
                snapshot = found[0]
                _refuse_other_source(snapshot, request.source_volume_id)
            else:
                snapshot = self._take(request.name, request.source_volume_id)
        return csi_pb2.CreateSnapshotResponse(snapshot=answers.snapshot(snapshot))

    def DeleteSnapshot(
        self, request: csi_pb2.DeleteSnapshotRequest, context: grpc.ServicerContext
    ) -> csi_pb2.DeleteSnapshotResponse:
        required(snapshot_id=request.snapshot_id)
        found = self.volumes.snapshot(request.snapshot_id)
        if found and found[0].group:
            raise InvalidRequest(f"snapshot {request.snapshot_id} is part of group {found[0].group}: delete that")
        if found:
            found[1].snapshots.delete(request.snapshot_id, lambda _: None)
        else:
            self.volumes.refuse_foreign(request.snapshot_id)
        return csi_pb2.DeleteSnapshotResponse()

    def ListSnapshots(
        self, request: csi_pb2.ListSnapshotsRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ListSnapshotsResponse:
        matching = (
            snapshot
            for pool in self.volumes.pools
            for snapshot in pool.all_snapshots()
            if request.snapshot_id in ("", snapshot.id) and request.source_volume_id in ("", snapshot.volume)
        )
        entries, token = page(matching, request.starting_token, request.max_entries)
        return csi_pb2.ListSnapshotsResponse(
            entries=[csi_pb2.ListSnapshotsResponse.Entry(snapshot=answers.snapshot(each)) for each in entries],
            next_token=token,
        )

    def GetSnapshot(
        self, request: csi_pb2.GetSnapshotRequest, context: grpc.ServicerContext
    ) -> csi_pb2.GetSnapshotResponse:
        required(snapshot_id=request.snapshot_id)
        found = self.volumes.snapshot(request.snapshot_id)
        if found is None:
            raise NotFound(f"snapshot {request.snapshot_id!r} does not exist")
        return csi_pb2.GetSnapshotResponse(snapshot=answers.snapshot(found[0]))

    def _take(self, name: str, volume_id: str) -> Snapshot:
        """Take a snapshot whose name is free; see ``to_copy``."""
        volume, pool = self.to_copy(volume_id)
        return pool.snapshot(
            Snapshot("", name, self.volumes.node, pool.name, volume.id, volume.size, created=int(time.time()))
        )


def _refuse_other_source(existing: Snapshot, volume_id: str) -> None:
    if existing.volume != volume_id:
        raise Conflict(f"snapshot {existing.name!r} exists, of volume {existing.volume}, not of {volume_id}")

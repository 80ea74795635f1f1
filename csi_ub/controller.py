"""The Controller service: CSI messages in and out of the pools of this node."""

import time
from collections.abc import Iterable
from dataclasses import replace

import grpc
from google.protobuf.wrappers_pb2 import Int64Value
from ubproto.csi.v1 import csi_pb2, csi_pb2_grpc

from csi_ub import answers, parameters, topology
from csi_ub.engines.base import Engine, Reach
from csi_ub.engines.shm import ShmEngine, refuse_growth
from csi_ub.model import Capability, CapacityRange, Snapshot, Source, Spec, Volume, VolumeType
from csi_ub.paging import page
from csi_ub.pool import Pool
from csi_ub.reasons import OutOfRange
from csi_ub.requests import capabilities, capacity, required
from csi_ub.uses import unsupported
from csi_ub.volumes import Volumes
from ubhost.errors import Conflict, Exhausted, InvalidRequest, NotFound, Unsupported

_Rpc = csi_pb2.ControllerServiceCapability.RPC
_CAPABILITIES = (
    _Rpc.CREATE_DELETE_VOLUME,
    _Rpc.LIST_VOLUMES,
    _Rpc.GET_VOLUME,
    _Rpc.VOLUME_CONDITION,
    _Rpc.GET_CAPACITY,
    _Rpc.CREATE_DELETE_SNAPSHOT,
    _Rpc.LIST_SNAPSHOTS,
    _Rpc.GET_SNAPSHOT,
    _Rpc.CLONE_VOLUME,
    _Rpc.EXPAND_VOLUME,
    _Rpc.MODIFY_VOLUME,
    _Rpc.SINGLE_NODE_MULTI_WRITER,
)


class Controller(csi_pb2_grpc.ControllerServicer):
    def __init__(self, volumes: Volumes) -> None:
        self._volumes = volumes

    def ControllerGetCapabilities(
        self, request: csi_pb2.ControllerGetCapabilitiesRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ControllerGetCapabilitiesResponse:
        return csi_pb2.ControllerGetCapabilitiesResponse(
            capabilities=[csi_pb2.ControllerServiceCapability(rpc=_Rpc(type=kind)) for kind in _CAPABILITIES]
        )

    def CreateVolume(
        self, request: csi_pb2.CreateVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.CreateVolumeResponse:
        required(name=request.name)
        wanted = capabilities(request.volume_capabilities)
        sizes = capacity(request)
        spec = parameters.parse(request.parameters, frozenset(pool.name for pool in self._volumes.pools))
        spec = parameters.modify(spec, request.mutable_parameters)
        if why := _unsupported(wanted, spec):
            raise InvalidRequest(why)
        want = Volume(
            id="",
            name=request.name,
            owner=self._volumes.node,
            pool="",
            spec=spec,
            modes=frozenset(each.mode for each in wanted),
            source=_source(request.volume_content_source),
            created=int(time.time()),
        )
        is_here = topology.is_within(self._volumes.place, _places(request.accessibility_requirements.requisite))
        with self._volumes.named(request.name, lambda pool: pool.volumes) as found:
            if found:  # looked at first: its source may have gone since, and its pool be full
                _refuse_incompatible(found[0], want, sizes, is_here=is_here)
            elif not is_here:
                raise Exhausted(f"the volume is asked for in places that node {self._volumes.node} does not serve")
            volume, pool = found or self._make(want, sizes)
        volume = self._engine(volume).prepare(volume, pool)
        return csi_pb2.CreateVolumeResponse(volume=self._answer(volume, pool))

    def DeleteVolume(
        self, request: csi_pb2.DeleteVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.DeleteVolumeResponse:
        required(volume_id=request.volume_id)
        found = self._volumes.own(request.volume_id)
        if found:
            volume, pool = found
            engine = self._engine(volume)
            pool.delete(volume.id, lambda it: engine.retire(it, pool), lambda it: engine.prepare(it, pool))
        else:
            self._volumes.refuse_foreign(request.volume_id)
        return csi_pb2.DeleteVolumeResponse()

    def ValidateVolumeCapabilities(
        self, request: csi_pb2.ValidateVolumeCapabilitiesRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ValidateVolumeCapabilitiesResponse:
        """Confirm what CreateVolume would grant. Context and parameters are not judged, so not confirmed."""
        required(volume_id=request.volume_id)
        wanted = capabilities(request.volume_capabilities)
        volume, _ = self._own(request.volume_id)
        if why := _unsupported(wanted, volume.spec):
            return csi_pb2.ValidateVolumeCapabilitiesResponse(message=why)
        return csi_pb2.ValidateVolumeCapabilitiesResponse(
            confirmed=csi_pb2.ValidateVolumeCapabilitiesResponse.Confirmed(
                volume_capabilities=request.volume_capabilities
            )
        )

    def ListVolumes(
        self, request: csi_pb2.ListVolumesRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ListVolumesResponse:
        found = {volume.id: (volume, pool) for pool in self._volumes.pools for volume in pool.volumes.all()}
        everything = (volume for volume, _ in found.values())
        entries, token = page(everything, request.starting_token, request.max_entries)
        return csi_pb2.ListVolumesResponse(
            entries=[
                csi_pb2.ListVolumesResponse.Entry(
                    volume=self._answer(volume, found[volume.id][1]),
                    status=csi_pb2.ListVolumesResponse.VolumeStatus(
                        volume_condition=self._condition(volume, found[volume.id][1])
                    ),
                )
                for volume in entries
            ],
            next_token=token,
        )

    def ControllerGetVolume(
        self, request: csi_pb2.ControllerGetVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ControllerGetVolumeResponse:
        required(volume_id=request.volume_id)
        volume, pool = self._own(request.volume_id)
        return csi_pb2.ControllerGetVolumeResponse(
            volume=self._answer(volume, pool),
            status=csi_pb2.ControllerGetVolumeResponse.VolumeStatus(volume_condition=self._condition(volume, pool)),
        )

    def GetCapacity(
        self, request: csi_pb2.GetCapacityRequest, context: grpc.ServicerContext
    ) -> csi_pb2.GetCapacityResponse:
        """Return what a class could still get here: nothing, if it asks for what we do not have or another place."""
        try:
            spec = parameters.parse(request.parameters, frozenset(pool.name for pool in self._volumes.pools))
            self._choose(spec)
        except (InvalidRequest, Unsupported):
            return csi_pb2.GetCapacityResponse(maximum_volume_size=Int64Value(value=0))
        wanted = request.volume_capabilities
        elsewhere = not topology.is_within(self._volumes.place, _places([request.accessible_topology]))
        if elsewhere or (wanted and _unsupported(capabilities(wanted), spec)):
            return csi_pb2.GetCapacityResponse(maximum_volume_size=Int64Value(value=0))
        pool = self._volumes.pool(spec.pool)
        available = pool.space.available(pool.path)
        return csi_pb2.GetCapacityResponse(
            available_capacity=available, maximum_volume_size=Int64Value(value=available)
        )

    def ControllerExpandVolume(
        self, request: csi_pb2.ControllerExpandVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ControllerExpandVolumeResponse:
        required(volume_id=request.volume_id, capacity_range=request.HasField("capacity_range"))
        sizes = capacity(request)
        volume, pool = self._own(request.volume_id)
        if sizes.limit and volume.size > sizes.limit:
            raise OutOfRange(f"volume {volume.id} has {volume.size} bytes already, more than {sizes.limit}")
        wanted = sizes.required or sizes.limit
        if volume.spec.type is VolumeType.MEMORY:
            refuse_growth(volume, wanted)
        _refuse_too_large(replace(volume, size=max(0, wanted - volume.size)), pool)
        grown = pool.grow(volume.id, wanted)
        self._engine(grown).grown(grown, pool)
        return csi_pb2.ControllerExpandVolumeResponse(capacity_bytes=grown.size, node_expansion_required=False)

    def ControllerModifyVolume(
        self, request: csi_pb2.ControllerModifyVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ControllerModifyVolumeResponse:
        """Change all that is asked for, or nothing."""
        required(volume_id=request.volume_id)
        volume, pool = self._own(request.volume_id)
        parameters.modify(volume.spec, request.mutable_parameters)
        changed = pool.volumes.update(
            volume.id, lambda it: replace(it, spec=parameters.modify(it.spec, request.mutable_parameters))
        )
        self._engine(changed).prepare(changed, pool)
        return csi_pb2.ControllerModifyVolumeResponse()

    def CreateSnapshot(
        self, request: csi_pb2.CreateSnapshotRequest, context: grpc.ServicerContext
    ) -> csi_pb2.CreateSnapshotResponse:
        required(name=request.name, source_volume_id=request.source_volume_id)
        parameters.refuse_all(request.parameters)
        with self._volumes.named(request.name, lambda pool: pool.snapshots) as found:
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
        found = self._volumes.snapshot(request.snapshot_id)
        if found:
            found[1].snapshots.delete(request.snapshot_id, lambda _: None)
        else:
            self._volumes.refuse_foreign(request.snapshot_id)
        return csi_pb2.DeleteSnapshotResponse()

    def ListSnapshots(
        self, request: csi_pb2.ListSnapshotsRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ListSnapshotsResponse:
        matching = (
            snapshot
            for pool in self._volumes.pools
            for snapshot in pool.snapshots.all()
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
        found = self._volumes.snapshot(request.snapshot_id)
        if found is None:
            raise NotFound(f"snapshot {request.snapshot_id!r} does not exist")
        return csi_pb2.GetSnapshotResponse(snapshot=answers.snapshot(found[0]))

    def _own(self, volume_id: str) -> tuple[Volume, Pool]:
        found = self._volumes.own(volume_id)
        if found is None:
            raise NotFound(f"volume {volume_id!r} does not exist on node {self._volumes.node}")
        return found

    def _make(self, want: Volume, sizes: CapacityRange) -> tuple[Volume, Pool]:
        """Make a volume whose name is free, in the pool that it asks for, that of its source, or the first.

        Raises:
            NotFound: its source does not exist.
            OutOfRange: its source is larger than the limit.
            Exhausted: the pool has not so many bytes left.
            InvalidRequest: its source lies in another pool than it asks for.
            Unsupported: no engine here keeps what it asks for.
        """
        least, source_pool = self._origin(want.source) if want.source else (0, None)
        pool = self._volumes.pool(want.spec.pool or (source_pool.name if source_pool else None))
        if source_pool and pool.name != source_pool.name:
            raise InvalidRequest(
                f"{want.source} lies in pool {source_pool.name!r}, the volume is asked for in {pool.name!r}"
            )
        if source_pool and want.spec.replicas > 1:
            raise Unsupported("a volume with replicas: 3 cannot be made from a snapshot or a volume yet: copy in a pod")
        engine = self._choose(want.spec)
        want = replace(want, pool=pool.name, size=_size(sizes, least), engine=engine.name)
        if isinstance(engine, ShmEngine):
            want = replace(want, size=engine.room_for(want.size, sizes.limit, want.spec.namespace))
        else:
            _refuse_too_large(want, pool)
        return pool.create(want), pool

    def _origin(self, source: Source) -> tuple[int, Pool]:
        """Return the bytes that a copy of ``source`` needs at least, and the pool that has it.

        Raises:
            NotFound: it does not exist.
        """
        found = self._volumes.snapshot(source.id) if source.is_snapshot else self._own(source.id)
        if found is None:
            raise NotFound(f"snapshot {source.id!r} does not exist on node {self._volumes.node}")
        return found[0].size, found[1]

    def _take(self, name: str, volume_id: str) -> Snapshot:
        """Take a snapshot whose name is free.

        Raises:
            NotFound: the volume does not exist.
            Unsupported: it belongs to another node.
        """
        found = self._volumes.own(volume_id)
        if found is None:
            self._volumes.refuse_foreign(volume_id)
            raise NotFound(f"volume {volume_id!r} does not exist")
        volume, pool = found
        self._engine(volume).check_current(volume, pool)
        return pool.snapshot(
            Snapshot("", name, self._volumes.node, pool.name, volume.id, volume.size, created=int(time.time()))
        )

    def _choose(self, spec: Spec) -> Engine:
        return self._volumes.engines.choose(parameters.engine(spec), spec.consistency, spec.replicas)

    def _engine(self, volume: Volume) -> Engine:
        return self._volumes.engines.named(volume.engine)

    def _condition(self, volume: Volume, pool: Pool) -> csi_pb2.VolumeCondition:
        engine = self._engine(volume)
        reach = Reach(volume.id, volume.owner, engine.context(volume, pool), pool)
        return answers.condition(lambda: engine.verify(reach))

    def _answer(self, volume: Volume, pool: Pool) -> csi_pb2.Volume:
        engine = self._engine(volume)
        key = topology.SUPERNODE if engine.spans_machines else topology.NODE
        return answers.volume(volume, pool, engine.context(volume, pool), {key: self._volumes.place[key]})


def _unsupported(wanted: tuple[Capability, ...], spec: Spec) -> str:
    return unsupported(wanted, spec.type, spec.consistency)


def _source(content: csi_pb2.VolumeContentSource) -> Source | None:
    """Return what a volume is to be made from, whether it exists or not."""
    match content.WhichOneof("type"):
        case "snapshot":
            required(snapshot_id=content.snapshot.snapshot_id)
            return Source(content.snapshot.snapshot_id, is_snapshot=True)
        case "volume":
            required(volume_id=content.volume.volume_id)
            return Source(content.volume.volume_id, is_snapshot=False)
        case None:
            return None


def _places(wanted: Iterable[csi_pb2.Topology]) -> list[dict[str, str]]:
    return [dict(each.segments) for each in wanted if each.segments]


def _size(sizes: CapacityRange, least: int) -> int:
    """Return the bytes of a new volume that must hold ``least``.

    Raises:
        OutOfRange: its source is larger than the limit.
    """
    size = max(sizes.required or sizes.limit, least)
    if sizes.limit and size > sizes.limit:
        raise OutOfRange(f"its source has {least} bytes, more than the limit of {sizes.limit}")
    return size


def _refuse_too_large(want: Volume, pool: Pool) -> None:
    if pool.space.has_quota and want.size > (available := pool.space.available(pool.path)):
        raise Exhausted(f"pool {pool.name!r} has {available} bytes left, not {want.size}")


def _refuse_incompatible(existing: Volume, want: Volume, sizes: CapacityRange, *, is_here: bool) -> None:
    """Raise ``Conflict`` if the volume that has the name is not what is asked for."""
    if not is_here:
        raise Conflict(f"volume {want.name!r} exists on node {existing.owner}, in none of the places asked for")
    if not sizes.includes(existing.size):
        raise Conflict(
            f"volume {want.name!r} exists with {existing.size} bytes, not {sizes.required} to {sizes.limit or 'any'}"
        )
    if existing.spec != want.spec:
        raise Conflict(f"volume {want.name!r} exists with other parameters: {existing.spec}")
    if not want.modes <= existing.modes:
        raise Conflict(f"volume {want.name!r} exists for {sorted(mode.name for mode in existing.modes)} only")
    if existing.source != want.source:
        raise Conflict(f"volume {want.name!r} exists, made from {existing.source}, not from {want.source}")


def _refuse_other_source(existing: Snapshot, volume_id: str) -> None:
    if existing.volume != volume_id:
        raise Conflict(f"snapshot {existing.name!r} exists, of volume {existing.volume}, not of {volume_id}")

"""The Controller service: CSI messages in and out of the pools of this node."""

from dataclasses import replace

import grpc
from google.protobuf.wrappers_pb2 import Int64Value
from ubproto.csi.v1 import csi_pb2, csi_pb2_grpc

from csi_ub import parameters, topology
from csi_ub.attaching import Attaching
from csi_ub.making import Making, places
from csi_ub.ownvolumes import why_unsupported
from csi_ub.paging import page
from csi_ub.reasons import OutOfRange
from csi_ub.requests import capabilities, capacity, required
from csi_ub.snapshots import Snapshots
from csi_ub.switching import switch
from ubhost.errors import InvalidRequest, Unsupported

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
_WITH_FENCING = (_Rpc.PUBLISH_UNPUBLISH_VOLUME, _Rpc.PUBLISH_READONLY)


class Controller(Making, Snapshots, Attaching, csi_pb2_grpc.ControllerServicer):
    def ControllerGetCapabilities(
        self, request: csi_pb2.ControllerGetCapabilitiesRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ControllerGetCapabilitiesResponse:
        kinds = [*_CAPABILITIES, *(_WITH_FENCING if self.has_fencing else ())]
        if self.has_fencing and not self.is_apart:  # who lists no volumes must not say that none is published
            kinds.append(_Rpc.LIST_VOLUMES_PUBLISHED_NODES)
        return csi_pb2.ControllerGetCapabilitiesResponse(
            capabilities=[csi_pb2.ControllerServiceCapability(rpc=_Rpc(type=kind)) for kind in kinds]
        )

    def ValidateVolumeCapabilities(
        self, request: csi_pb2.ValidateVolumeCapabilitiesRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ValidateVolumeCapabilitiesResponse:
        """Confirm what CreateVolume would grant. Context and parameters are not judged, so not confirmed."""
        required(volume_id=request.volume_id)
        wanted = capabilities(request.volume_capabilities)
        volume, _ = self.own(request.volume_id)
        if why := why_unsupported(wanted, volume.spec):
            return csi_pb2.ValidateVolumeCapabilitiesResponse(message=why)
        return csi_pb2.ValidateVolumeCapabilitiesResponse(
            confirmed=csi_pb2.ValidateVolumeCapabilitiesResponse.Confirmed(
                volume_capabilities=request.volume_capabilities
            )
        )

    def ListVolumes(
        self, request: csi_pb2.ListVolumesRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ListVolumesResponse:
        found = {
            volume.id: (volume, pool)
            for pool in self.volumes.pools
            for volume in pool.volumes.all()
            if not volume.is_inline
        }
        everything = (volume for volume, _ in found.values())
        entries, token = page(everything, request.starting_token, request.max_entries)
        return csi_pb2.ListVolumesResponse(
            entries=[
                csi_pb2.ListVolumesResponse.Entry(
                    volume=self.answer(volume, found[volume.id][1]),
                    status=csi_pb2.ListVolumesResponse.VolumeStatus(
                        published_node_ids=self.nodes(volume, found[volume.id][1]),
                        volume_condition=self.condition(volume, found[volume.id][1]),
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
        volume, pool = self.own(request.volume_id)
        return csi_pb2.ControllerGetVolumeResponse(
            volume=self.answer(volume, pool),
            status=csi_pb2.ControllerGetVolumeResponse.VolumeStatus(
                published_node_ids=self.nodes(volume, pool), volume_condition=self.condition(volume, pool)
            ),
        )

    def GetCapacity(
        self, request: csi_pb2.GetCapacityRequest, context: grpc.ServicerContext
    ) -> csi_pb2.GetCapacityResponse:
        """Return what a class could still get here: nothing, if it asks for what we do not have or another place."""
        try:
            spec = parameters.parse(request.parameters, frozenset(pool.name for pool in self.volumes.pools))
            engine = self.choose(spec)
        except (InvalidRequest, Unsupported):
            return csi_pb2.GetCapacityResponse(maximum_volume_size=Int64Value(value=0))
        wanted = request.volume_capabilities
        elsewhere = not topology.is_within(self.volumes.place, places([request.accessible_topology]))
        if elsewhere or (wanted and why_unsupported(capabilities(wanted), spec)):
            return csi_pb2.GetCapacityResponse(maximum_volume_size=Int64Value(value=0))
        available = engine.available(self.volumes.pool(spec.pool), spec.consistency)
        return csi_pb2.GetCapacityResponse(
            available_capacity=available, maximum_volume_size=Int64Value(value=available)
        )

    def ControllerExpandVolume(
        self, request: csi_pb2.ControllerExpandVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ControllerExpandVolumeResponse:
        required(volume_id=request.volume_id, capacity_range=request.HasField("capacity_range"))
        sizes = capacity(request)
        volume, pool = self.own(request.volume_id)
        if sizes.limit and volume.size > sizes.limit:
            raise OutOfRange(f"volume {volume.id} has {volume.size} bytes already, more than {sizes.limit}")
        size = pool.rounded(volume, sizes.required or sizes.limit, sizes.limit)
        grown = self.engine(volume).grow(volume, pool, size)
        return csi_pb2.ControllerExpandVolumeResponse(capacity_bytes=grown.size, node_expansion_required=grown.is_block)

    def ControllerModifyVolume(
        self, request: csi_pb2.ControllerModifyVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ControllerModifyVolumeResponse:
        """Change all that is asked for, or nothing."""
        required(volume_id=request.volume_id)
        volume, pool = self.own(request.volume_id)
        spec = parameters.modify(volume.spec, request.mutable_parameters)
        if spec.consistency is not volume.spec.consistency:
            switch(self.volumes, volume, pool, spec)
            return csi_pb2.ControllerModifyVolumeResponse()
        changed = pool.volumes.update(
            volume.id, lambda it: replace(it, spec=parameters.modify(it.spec, request.mutable_parameters))
        )
        self.engine(changed).prepare(changed, pool)
        return csi_pb2.ControllerModifyVolumeResponse()

"""The Node service: CSI messages in and out of ``NodeVolumes``."""

import grpc
from ubproto.csi.v1 import csi_pb2, csi_pb2_grpc

from csi_ub.attaching import NODE
from csi_ub.inline import EPHEMERAL
from csi_ub.model import Capability, VolumeType, is_own_id
from csi_ub.models.inline import InlineModels, model_named
from csi_ub.nodelooks import NodeLooks
from csi_ub.nodevolumes import NodeVolumes
from csi_ub.reasons import NotStaged
from csi_ub.requests import capacity, one_capability, required
from csi_ub.scratch import Scratch

_Rpc = csi_pb2.NodeServiceCapability.RPC
_CAPABILITIES = (
    _Rpc.STAGE_UNSTAGE_VOLUME,
    _Rpc.GET_VOLUME_STATS,
    _Rpc.EXPAND_VOLUME,
    _Rpc.VOLUME_CONDITION,
    _Rpc.SINGLE_NODE_MULTI_WRITER,
    _Rpc.VOLUME_MOUNT_GROUP,
)


class Node(csi_pb2_grpc.NodeServicer):
    def __init__(self, volumes: NodeVolumes, *, has_fencing: bool = False, inline_limit: int = 1 << 30) -> None:
        self._volumes = volumes
        self._has_fencing = has_fencing
        self._looks = NodeLooks(volumes.volumes, volumes.run, volumes.blocks)
        self._models = InlineModels(volumes)
        self._scratch = Scratch(volumes, inline_limit)

    def NodeStageVolume(
        self, request: csi_pb2.NodeStageVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeStageVolumeResponse:
        required(volume_id=request.volume_id, staging_target_path=request.staging_target_path)
        capability = one_capability(request)
        node = self._volumes.volumes.node
        if self._has_fencing and request.publish_context.get(NODE) != node:
            raise NotStaged(f"volume {request.volume_id} was not published to node {node} by ControllerPublishVolume")
        self._volumes.stage(request.volume_id, request.staging_target_path, capability, request.volume_context)
        return csi_pb2.NodeStageVolumeResponse()

    def NodeUnstageVolume(
        self, request: csi_pb2.NodeUnstageVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeUnstageVolumeResponse:
        required(volume_id=request.volume_id, staging_target_path=request.staging_target_path)
        self._volumes.unstage(request.volume_id, request.staging_target_path)
        return csi_pb2.NodeUnstageVolumeResponse()

    def NodePublishVolume(
        self, request: csi_pb2.NodePublishVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodePublishVolumeResponse:
        required(volume_id=request.volume_id, target_path=request.target_path)
        capability = one_capability(request)
        if request.volume_context.get(EPHEMERAL) == "true":
            self._publish_inline(request, capability)
            return csi_pb2.NodePublishVolumeResponse()
        if not request.staging_target_path:
            raise NotStaged(f"volume {request.volume_id}: staging_target_path is missing, but volumes are staged here")
        self._volumes.publish(
            request.volume_id,
            request.staging_target_path,
            request.target_path,
            capability,
            request.volume_context,
            readonly=request.readonly,
        )
        return csi_pb2.NodePublishVolumeResponse()

    def NodeUnpublishVolume(
        self, request: csi_pb2.NodeUnpublishVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeUnpublishVolumeResponse:
        required(volume_id=request.volume_id, target_path=request.target_path)
        handle, target = request.volume_id, request.target_path
        # What has an id of ours no pod brought itself: no pool is looked at, which may have gone, for what need not be.
        is_brought = not is_own_id(handle)
        if not (is_brought and (self._models.unpublish(handle, target) or self._scratch.unpublish(handle, target))):
            self._volumes.unpublish(handle, target)
        return csi_pb2.NodeUnpublishVolumeResponse()

    def NodeGetCapabilities(
        self, request: csi_pb2.NodeGetCapabilitiesRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeGetCapabilitiesResponse:
        return csi_pb2.NodeGetCapabilitiesResponse(
            capabilities=[csi_pb2.NodeServiceCapability(rpc=_Rpc(type=kind)) for kind in _CAPABILITIES]
        )

    def NodeGetInfo(
        self, request: csi_pb2.NodeGetInfoRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeGetInfoResponse:
        volumes = self._volumes.volumes
        return csi_pb2.NodeGetInfoResponse(
            node_id=volumes.node, accessible_topology=csi_pb2.Topology(segments=volumes.place)
        )

    def NodeGetVolumeStats(
        self, request: csi_pb2.NodeGetVolumeStatsRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeGetVolumeStatsResponse:
        required(volume_id=request.volume_id, volume_path=request.volume_path)
        stats = self._looks.stats(self._volume(request.volume_id), request.volume_path)
        units = csi_pb2.VolumeUsage
        return csi_pb2.NodeGetVolumeStatsResponse(
            usage=[
                csi_pb2.VolumeUsage(available=each.available, total=each.total, used=each.used, unit=unit)
                for each, unit in ((stats.bytes, units.BYTES), (stats.inodes, units.INODES))
                if each is not None
            ]
            or [csi_pb2.VolumeUsage(total=stats.device or 0, unit=units.BYTES)] * (stats.device is not None),
            volume_condition=csi_pb2.VolumeCondition(abnormal=bool(stats.fault), message=stats.fault or "well"),
        )

    def _publish_inline(self, request: csi_pb2.NodePublishVolumeRequest, capability: Capability) -> None:
        context, handle, target = request.volume_context, request.volume_id, request.target_path
        if "model" in context or context.get("type") == VolumeType.MODEL.value:
            self._models.publish(handle, model_named(context), target, capability)
        else:
            self._scratch.publish(handle, context, target, capability, readonly=request.readonly)

    def _volume(self, handle: str) -> str:
        """Return the id of a volume: of one that a pod brought, kubelet knows the handle only."""
        if is_own_id(handle):
            return handle
        found = self._scratch.find(handle)
        return found[0].id if found else handle

    def NodeExpandVolume(
        self, request: csi_pb2.NodeExpandVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeExpandVolumeResponse:
        """Answer with the size: the controller's call grew the volume on every node already, all but its devices."""
        required(volume_id=request.volume_id, volume_path=request.volume_path)
        capacity(request)
        size = self._looks.size(request.volume_id, request.volume_path)
        grown = self._volumes.grow(request.volume_id)
        return csi_pb2.NodeExpandVolumeResponse(capacity_bytes=size if grown is None else grown)

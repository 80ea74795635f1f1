"""The Controller service: CSI messages in and out of the pools."""

import grpc
from ubproto.csi.v1 import csi_pb2, csi_pb2_grpc

from csi_ub import parameters
from csi_ub.engines.base import Engine
from csi_ub.model import Capability, CapacityRange, Volume
from csi_ub.mountflags import attributes
from csi_ub.requests import capabilities, capacity, required
from csi_ub.volumes import Volumes
from ubhost.errors import Conflict, InvalidRequest, NotFound

_Rpc = csi_pb2.ControllerServiceCapability.RPC
_CAPABILITIES = (_Rpc.CREATE_DELETE_VOLUME, _Rpc.SINGLE_NODE_MULTI_WRITER)


class Controller(csi_pb2_grpc.ControllerServicer):
    def __init__(self, volumes: Volumes, engine: Engine) -> None:
        self._volumes = volumes
        self._engine = engine

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
        if why := _unsupported(wanted):
            raise InvalidRequest(why)
        sizes = capacity(request)
        _refuse_extras(request)
        spec = parameters.parse(request.parameters, frozenset(pool.name for pool in self._volumes.pools))
        pool = self._volumes.pool(spec.pool)
        want = Volume(
            id="",
            name=request.name,
            owner=self._volumes.node,
            pool=pool.name,
            spec=spec,
            size=sizes.required or sizes.limit,
            modes=frozenset(each.mode for each in wanted),
        )
        volume = pool.create(want, lambda existing: _refuse_incompatible(existing, want, sizes))
        return csi_pb2.CreateVolumeResponse(
            volume=csi_pb2.Volume(
                volume_id=volume.id,
                capacity_bytes=volume.size if pool.space.has_quota else 0,
                volume_context=self._engine.prepare(volume, pool),
            )
        )

    def DeleteVolume(
        self, request: csi_pb2.DeleteVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.DeleteVolumeResponse:
        required(volume_id=request.volume_id)
        found = self._volumes.own(request.volume_id)
        if found:
            found[1].delete(request.volume_id)
        else:
            self._volumes.refuse_foreign(request.volume_id)
        return csi_pb2.DeleteVolumeResponse()

    def ValidateVolumeCapabilities(
        self, request: csi_pb2.ValidateVolumeCapabilitiesRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ValidateVolumeCapabilitiesResponse:
        required(volume_id=request.volume_id)
        wanted = capabilities(request.volume_capabilities)
        if self._volumes.own(request.volume_id) is None:
            raise NotFound(f"volume {request.volume_id!r} does not exist on node {self._volumes.node}")
        if why := _unsupported(wanted):
            return csi_pb2.ValidateVolumeCapabilitiesResponse(message=why)
        return csi_pb2.ValidateVolumeCapabilitiesResponse(
            confirmed=csi_pb2.ValidateVolumeCapabilitiesResponse.Confirmed(
                volume_context=request.volume_context,
                volume_capabilities=request.volume_capabilities,
                parameters=request.parameters,
            )
        )


def _unsupported(wanted: tuple[Capability, ...]) -> str:
    """Return why a file-system volume cannot be used like that; "" if it can."""
    for each in wanted:
        if each.is_block:
            return "a volume of type filesystem has no block device"
        try:
            attributes(each, is_read_only=False)
        except InvalidRequest as error:
            return str(error)
    return ""


def _refuse_extras(request: csi_pb2.CreateVolumeRequest) -> None:
    """Refuse what is asked for but not offered: an answer that ignored it would be a lie."""
    if request.HasField("volume_content_source"):
        raise InvalidRequest("volume_content_source is not offered")
    if request.mutable_parameters:
        raise InvalidRequest(f"unknown mutable parameter {', '.join(sorted(request.mutable_parameters))}")


def _refuse_incompatible(existing: Volume, want: Volume, sizes: CapacityRange) -> None:
    """Raise ``Conflict`` if the volume that has the name is not what is asked for."""
    if not sizes.includes(existing.size):
        raise Conflict(
            f"volume {want.name!r} exists with {existing.size} bytes, not {sizes.required} to {sizes.limit or 'any'}"
        )
    if existing.spec != want.spec:
        raise Conflict(f"volume {want.name!r} exists with other parameters: {existing.spec}")
    if not want.modes <= existing.modes:
        raise Conflict(f"volume {want.name!r} exists for {sorted(mode.name for mode in existing.modes)} only")

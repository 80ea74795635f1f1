"""The Identity service: who we are, what we can, whether we are well."""

from collections.abc import Callable

import grpc
from google.protobuf.wrappers_pb2 import BoolValue
from ubproto.csi.v1 import csi_pb2, csi_pb2_grpc

from csi_ub import DRIVER, VERSION

_Service, _Expansion = csi_pb2.PluginCapability.Service, csi_pb2.PluginCapability.VolumeExpansion
_CAPABILITIES = (
    csi_pb2.PluginCapability(service=_Service(type=_Service.CONTROLLER_SERVICE)),
    csi_pb2.PluginCapability(service=_Service(type=_Service.VOLUME_ACCESSIBILITY_CONSTRAINTS)),
    csi_pb2.PluginCapability(service=_Service(type=_Service.GROUP_CONTROLLER_SERVICE)),
    csi_pb2.PluginCapability(volume_expansion=_Expansion(type=_Expansion.ONLINE)),
)


class Identity(csi_pb2_grpc.IdentityServicer):
    """``check`` raises what is wrong with the driver's surroundings; it must not touch the data of volumes."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def GetPluginInfo(
        self, request: csi_pb2.GetPluginInfoRequest, context: grpc.ServicerContext
    ) -> csi_pb2.GetPluginInfoResponse:
        return csi_pb2.GetPluginInfoResponse(name=DRIVER, vendor_version=VERSION)

    def GetPluginCapabilities(
        self, request: csi_pb2.GetPluginCapabilitiesRequest, context: grpc.ServicerContext
    ) -> csi_pb2.GetPluginCapabilitiesResponse:
        """Return the same from every mode: the cluster asks any instance about all of them."""
        return csi_pb2.GetPluginCapabilitiesResponse(capabilities=_CAPABILITIES)

    def Probe(self, request: csi_pb2.ProbeRequest, context: grpc.ServicerContext) -> csi_pb2.ProbeResponse:
        self._check()
        return csi_pb2.ProbeResponse(ready=BoolValue(value=True))

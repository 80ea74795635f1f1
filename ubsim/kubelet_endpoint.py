"""One device plugin as kubelet sees it: what it offers, and what it answers.

Source: kubernetes pkg/kubelet/cm/devicemanager (manager.go, endpoint.go), release 1.34.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from ubproto.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from ubproto.deviceplugin.v1beta1 import deviceplugin_pb2_grpc


class Rejected(Exception):
    """A pod was not admitted; the text is what its owner would read."""


@dataclass
class Endpoint:
    """One plugin that registered. Without a stream its devices are not to be trusted."""

    resource: str
    path: Path
    channel: grpc.Channel
    options: pb.DevicePluginOptions
    devices: dict[str, pb.Device] = field(default_factory=dict)
    lists: int = 0  # how many lists came over the stream
    is_alive: bool = True

    @property
    def healthy(self) -> set[str]:
        return {id_ for id_, device in self.devices.items() if device.health == "Healthy" and self.is_alive}

    def allocate(self, ids: Sequence[str]) -> pb.ContainerAllocateResponse:
        """Ask for what a container needs to use these devices.

        Raises:
            Rejected: the plugin refused, or its answer does not fit.
        """
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        try:
            answer = deviceplugin_pb2_grpc.DevicePluginStub(self.channel).Allocate(request, timeout=10)
        except grpc.RpcError as error:
            raise Rejected(
                f"Allocate failed due to rpc error: code = {error.code().name} desc = {error.details()}"
            ) from error
        if len(answer.container_responses) != 1:
            raise Rejected(f"no containers in response to Allocate for {self.resource}")
        return answer.container_responses[0]

    def preferred(self, pool: set[str], must: Sequence[str], count: int) -> list[str]:
        """Ask the plugin what it would take; an answer that does not fit is ignored, as kubelet does."""
        asked = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=sorted(pool), must_include_deviceIDs=must, allocation_size=count
        )
        request = pb.PreferredAllocationRequest(container_requests=[asked])
        stub = deviceplugin_pb2_grpc.DevicePluginStub(self.channel)
        answer = stub.GetPreferredAllocation(request, timeout=10).container_responses[0].deviceIDs
        chosen = [id_ for id_ in answer if id_ in pool][:count]
        return chosen + sorted(pool - set(chosen))[: count - len(chosen)]

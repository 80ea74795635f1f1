"""One resource as kubelet's device plugin API wants it: the list of devices, and what a container gets with one.

What is offered is computed by plain functions from a snapshot; the class below only speaks gRPC.

Source: k8s.io/kubelet pkg/apis/deviceplugin/v1beta1; design section 6.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

import grpc
from ubproto.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from ubproto.deviceplugin.v1beta1 import deviceplugin_pb2_grpc

from cni_ub.agent import cdi, deviceid
from cni_ub.agent.allocation import prefer
from cni_ub.agent.inventory import DeviceState, Inventory, Snapshot
from cni_ub.agent.settings import Resource
from ubhost.errors import Conflict, NotFound
from ubhost.provider import Sharing

API_VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
_LOOK_ROUND_S = 30.0  # a stream whose kubelet vanished without a word is given up after this

log = logging.getLogger(__name__)


def assign(resources: Sequence[Resource], devices: Iterable[DeviceState]) -> dict[str, tuple[DeviceState, ...]]:
    """Return the devices of each resource, by its name: a device belongs to the first resource that names it."""
    offered: dict[str, list[DeviceState]] = {resource.name: [] for resource in resources}
    for state in devices:
        owner = next((resource for resource in resources if resource.is_for(state.device.id)), None)
        if owner:
            offered[owner.name].append(state)
    return {name: tuple(states) for name, states in offered.items()}


def ids(resource: Resource, device: str) -> tuple[str, ...]:
    """Return the ids under which a device is offered: its name, or one for each pod that may share it."""
    if resource.isolation is Sharing.EXCLUSIVE:
        return (device,)
    return tuple(deviceid.replica(device, number) for number in range(resource.replicas))


def listing(resource: Resource, states: Iterable[DeviceState]) -> pb.ListAndWatchResponse:
    """Return the list that kubelet gets."""
    return pb.ListAndWatchResponse(
        devices=[
            pb.Device(ID=id_, health=HEALTHY if state.is_healthy else UNHEALTHY, topology=_topology(state))
            for state in states
            for id_ in ids(resource, state.device.id)
        ]
    )


def _topology(state: DeviceState) -> pb.TopologyInfo | None:
    numa = state.device.numa
    return None if numa is None else pb.TopologyInfo(nodes=[pb.NUMANode(ID=numa)])


def container_answer(resource: Resource, states: Sequence[DeviceState]) -> pb.ContainerAllocateResponse:
    """Return what a container gets with its devices: CDI names, and variables that tell it which they are."""
    members = [name for state in states for name in state.device.members]
    eids = [str(state.device.eids[0].eid) for state in states if state.device.eids]
    variables = {"": [state.device.id for state in states], "_URMA": members, "_EID": eids}
    return pb.ContainerAllocateResponse(
        envs={resource.variable + suffix: ",".join(values) for suffix, values in variables.items() if values},
        cdi_devices=[pb.CDIDevice(name=cdi.name(state.device.id)) for state in states],
    )


class DevicePlugin(deviceplugin_pb2_grpc.DevicePluginServicer):
    """One resource. ``prepare`` makes devices ready for a container, by name, before kubelet is answered."""

    def __init__(
        self,
        resource: Resource,
        resources: Sequence[Resource],
        inventory: Inventory,
        prepare: Callable[[Iterable[str]], Snapshot],
    ) -> None:
        self.resource = resource
        self._streams: set[grpc.ServicerContext] = set()
        self._resources = resources
        self._inventory = inventory
        self._prepare = prepare
        self._is_closing = False

    @property
    def is_watched(self) -> bool:
        """Whether kubelet holds a stream of ListAndWatch open."""
        return bool(self._streams)

    def close(self) -> None:
        """End every stream: the socket is about to go."""
        self._is_closing = True
        self._inventory.wake_waiters()

    def _mine(self, snapshot: Snapshot) -> tuple[DeviceState, ...]:
        return assign(self._resources, snapshot.devices)[self.resource.name]

    def GetDevicePluginOptions(self, request: pb.Empty, context: grpc.ServicerContext) -> pb.DevicePluginOptions:
        return options()

    def ListAndWatch(self, request: pb.Empty, context: grpc.ServicerContext) -> Iterator[pb.ListAndWatchResponse]:
        self._streams.add(context)
        context.add_callback(self._inventory.wake_waiters)
        try:
            yield from self._listings(context)
        finally:
            self._streams.discard(context)

    def _listings(self, context: grpc.ServicerContext) -> Iterator[pb.ListAndWatchResponse]:
        """Give the list at once, and again whenever something in it changed."""

        def is_over() -> bool:
            return self._is_closing or not context.is_active()

        sent: pb.ListAndWatchResponse | None = None
        snapshot = self._inventory.snapshot
        while not is_over():
            if snapshot.version:  # before the first look an empty list would make kubelet fail running pods
                now = listing(self.resource, self._mine(snapshot))
                if now != sent:
                    sent = now
                    healthy = sum(device.health == HEALTHY for device in now.devices)
                    extra = {"resource": self.resource.name, "devices": len(now.devices), "healthy": healthy}
                    log.info("devices announced to kubelet", extra=extra)
                    yield now
            snapshot = self._inventory.wait(snapshot.version, _LOOK_ROUND_S, is_over)

    def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> pb.PreferredAllocationResponse:
        places = {state.device.id: state.place for state in self._inventory.snapshot.devices}
        answers = [
            prefer(asked.available_deviceIDs, asked.must_include_deviceIDs, asked.allocation_size, places)
            for asked in request.container_requests
        ]
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=answer) for answer in answers]
        )

    def Allocate(self, request: pb.AllocateRequest, context: grpc.ServicerContext) -> pb.AllocateResponse:
        before = {state.device.id: state for state in self._mine(self._inventory.snapshot)}
        asked = [[_usable(id_, before) for id_ in container.devices_ids] for container in request.container_requests]
        now = self._prepare(state.device.id for states in asked for state in states).by_id
        containers = [[now.get(state.device.id, state) for state in states] for states in asked]
        for states in containers:
            devices = [state.device.id for state in states]
            log.info("devices given to a container", extra={"resource": self.resource.name, "devices": devices})
        return pb.AllocateResponse(
            container_responses=[container_answer(self.resource, states) for states in containers]
        )

    def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> pb.PreStartContainerResponse:
        return pb.PreStartContainerResponse()


def options() -> pb.DevicePluginOptions:
    return pb.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=True)


def _usable(id_: str, mine: dict[str, DeviceState]) -> DeviceState:
    """Return the device behind kubelet's id.

    Raises:
        NotFound: it is not one of this resource, or gone.
        Conflict: it became unhealthy after kubelet chose it.
    """
    state = mine.get(deviceid.device_of(id_))
    if state is None:
        raise NotFound(f"device {id_} is not on this node any more; there are: {', '.join(mine) or 'none'}")
    if state.faults:
        raise Conflict(f"device {id_} cannot be given to a container: {'; '.join(state.faults)}")
    return state

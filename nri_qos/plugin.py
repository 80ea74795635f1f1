"""The NRI plugin: calls of the runtime in, answers out.

Every handler works in memory and answers at once; the runtime gives all plugins together two seconds, drops one that
is late, and goes on without it. Only a creation is ever refused.

Source: reference/nri.md sections 1.4 to 1.10.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError, Message
from ubproto.nri.v1alpha1 import nri_pb2

from nri_qos import claims, cpulist, messages, subscription
from nri_qos.config import Failure
from nri_qos.errors import STATUS
from nri_qos.grants import NOTHING
from nri_qos.latency import Latencies
from nri_qos.lookup import Found
from nri_qos.model import Container, Decision, Pod, QosClass
from nri_qos.ttrpc.session import Call, Status
from nri_qos.world import World
from ubhost import log
from ubhost.errors import Exhausted, UbError, code_for

SERVICE = "nri.pkg.api.v1alpha1.Plugin"
VERSION = "v0.12.1"  # of NRI, as we speak it
LONGEST_WAIT_S = 5.0  # for the model or for files, even of a runtime that has more patience than four times that
_log = logging.getLogger(__name__)

Handler = Callable[["Plugin", bytes, float], Message]


class Refusal(Exception):
    """The answer is an error."""

    def __init__(self, code: Status, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Phase:
    """How far the session with the runtime is; what readiness and metrics report."""

    is_configured: bool = False
    is_synchronized: bool = False
    runtime: str = ""


class Plugin:
    """Serves one runtime at a time; ``connected()`` starts over."""

    def __init__(
        self,
        world: World,
        *,
        is_enforcing: bool = True,
        wake: Callable[[], None] = lambda: None,
        configure: Callable[[str], None] = lambda _: None,
        look_up: Callable[[Pod, Container, float], Found] = lambda *_: Found(),
    ) -> None:
        self.phase = Phase()
        self.latencies = Latencies()
        self._world = world
        self._is_enforcing = is_enforcing  # else: decide and report, answer with nothing
        self._wake = wake  # the loop has something to do
        self._look_up = look_up
        self._configure_from = configure  # takes the drop-in text of a pre-installed plugin
        self._pods: dict[str, Pod] = {}  # of a Synchronize in parts, by id
        self._containers: dict[str, Container] = {}

    def connected(self) -> None:
        """Forget what belonged to an earlier connection. The model stays until Synchronize replaces it."""
        self.phase = Phase()
        self._world.counts["sessions",] += 1
        self._pods.clear()
        self._containers.clear()

    def disconnected(self) -> None:
        self.phase = Phase()

    def handle(self, call: Call) -> bytes:
        """Return the payload of the answer.

        Raises:
            Refusal: the answer is an error.
        """
        handler = _HANDLERS.get(call.method) if call.service == SERVICE else None
        if handler is None:
            raise Refusal(Status.UNIMPLEMENTED, f"{call.service}/{call.method} is not implemented")
        wait_s = min(LONGEST_WAIT_S, (call.timeout_s or 2) / 4)
        began = time.perf_counter()
        try:
            return handler(self, call.payload, wait_s).SerializeToString()
        except Refusal:
            raise
        except Exception as error:
            self._world.counts["handler_errors", call.method] += 1
            self._log_doubt(call.method, error)
            if self._must_refuse(call.method):
                raise Refusal(_status(error), f"nri-qos: {error}") from error
            return b""
        finally:
            self.latencies.add(call.method, time.perf_counter() - began)

    def _log_doubt(self, method: str, error: Exception) -> None:
        is_foreseen = isinstance(error, UbError | DecodeError)
        _log.error(
            "a call could not be worked on",
            extra={"method": method, "error": str(error), "refused": self._must_refuse(method)},
            exc_info=None if is_foreseen else error,
        )

    def _must_refuse(self, method: str) -> bool:
        """Whether the runtime hears of our doubt: in its handshake always, of a container if it is configured so."""
        if method == "CreateContainer":
            return self._world.config.failure is Failure.STRICT and self._is_enforcing
        return method in ("Configure", "Synchronize")

    def _configure(self, payload: bytes, _wait_s: float) -> Message:
        request = nri_pb2.ConfigureRequest.FromString(payload)
        self.phase.runtime = f"{request.runtime_name} {request.runtime_version}"
        self._configure_from(request.config)
        if subscription.can_hang(request.runtime_name, request.runtime_version):
            _log.warning(
                "this containerd can hang when a plugin registers while a container starts: 1.7.16 has the fix",
                extra={"runtime": self.phase.runtime},
            )
        answer = nri_pb2.ConfigureResponse(events=subscription.events(request.NRI_version))
        self.phase.is_configured = True
        _log.info(
            "configured by the runtime",
            extra={
                "runtime": self.phase.runtime,
                "nri": request.NRI_version or "before 0.12",
                "registration_timeout_ms": request.registration_timeout,
                "request_timeout_ms": request.request_timeout,
            },
        )
        return answer

    def _synchronize(self, payload: bytes, wait_s: float) -> Message:
        request = nri_pb2.SynchronizeRequest.FromString(payload)
        self._pods.update((pod.id, messages.pod(pod)) for pod in request.pods)
        self._containers.update((container.id, messages.container(container)) for container in request.containers)
        if request.more:
            return nri_pb2.SynchronizeResponse(more=True)
        pods, self._pods, containers, self._containers = self._pods, {}, self._containers, {}
        with self._world.locked(wait_s) as world:
            world.synchronize(pods.values(), containers.values())
        self.phase.is_synchronized = True
        _log.info("synchronized with the runtime", extra={"pods": len(pods), "containers": len(containers)})
        self._wake()
        return nri_pb2.SynchronizeResponse()

    def _create(self, payload: bytes, wait_s: float) -> Message:
        request = nri_pb2.CreateContainerRequest.FromString(payload)
        pod = messages.pod(request.pod) if request.HasField("pod") else None
        container = messages.container(request.container)
        if pod is not None and not container.pod_id:
            container = replace(container, pod_id=pod.id)
        with log.ids(pod=f"{request.pod.namespace}/{request.pod.name}", container=container.name or container.id):
            found = self._look_up(pod or Pod(container.pod_id), container, wait_s)
            if found.doubt is not None:
                self._doubt_grants(found.doubt)
            try:
                with self._world.locked(wait_s) as world:
                    decision = world.create(pod, container, found.device_nodes, found.grants.words())
            except Exhausted as error:
                self._world.counts["refused",] += 1
                _log.warning("container refused", extra={"reason": str(error), "enforced": self._is_enforcing})
                if not self._is_enforcing:
                    return nri_pb2.CreateContainerResponse()
                raise Refusal(STATUS[Exhausted], f"nri-qos: {error}") from error
            self._report(decision, found)
        self._wake()
        if not self._is_enforcing:
            return nri_pb2.CreateContainerResponse()
        return nri_pb2.CreateContainerResponse(adjust=messages.adjustment(decision, found.grants))

    def _doubt_grants(self, doubt: UbError) -> None:
        """Go on without what a pod may have been given, or refuse it its container: as configured."""
        self._world.counts["grants_unknown",] += 1
        if self._must_refuse("CreateContainer"):
            raise doubt
        _log.error("a container goes without what its pod may have been given", extra={"error": str(doubt)})

    def _report(self, decision: Decision, found: Found) -> None:
        self._world.counts["decisions", decision.qos.value] += 1
        is_left_alone = decision.qos is QosClass.UNDECLARED and decision.is_empty and found.grants == NOTHING
        _log.log(
            logging.DEBUG if is_left_alone else logging.INFO,
            "container decided",
            extra={
                "class": decision.qos.value,
                "shares": decision.shares,
                "cpus": None if decision.cpus is None else cpulist.render(decision.cpus),
                "mems": None if decision.mems is None else cpulist.render(decision.mems),
                "because": decision.reasons,
                "devices": [device.path for device in found.grants.devices],
                "enforced": self._is_enforcing,
            },
        )

    def _update(self, payload: bytes, wait_s: float) -> Message:
        request = nri_pb2.UpdateContainerRequest.FromString(payload)
        pod = messages.pod(request.pod) if request.HasField("pod") else None
        with self._world.locked(wait_s) as world:
            kept = world.update(pod, messages.container(request.container), messages.resources(request.linux_resources))
        self._wake()
        if kept is None or not self._is_enforcing:
            return nri_pb2.UpdateContainerResponse()
        self._world.counts["reasserted",] += 1
        return nri_pb2.UpdateContainerResponse(update=[messages.update(request.container.id, kept)])

    def _update_pod(self, payload: bytes, wait_s: float) -> Message:
        request = nri_pb2.UpdatePodSandboxRequest.FromString(payload)
        pod, wanted = messages.pod(request.pod), messages.resources(request.linux_resources)
        with self._world.locked(wait_s) as world:
            world.add_pod(replace(pod, resources=claims.merged(pod.resources, wanted)))
        self._wake()
        return nri_pb2.Empty()

    def _state_change(self, payload: bytes, wait_s: float) -> Message:
        message = nri_pb2.StateChangeEvent.FromString(payload)
        self._event(message.event, message.pod, message.container, wait_s)
        return nri_pb2.Empty()

    def _event(self, event: int, pod: nri_pb2.PodSandbox, container: nri_pb2.Container, wait_s: float) -> None:
        with self._world.locked(wait_s) as world:
            match event:
                case nri_pb2.RUN_POD_SANDBOX | nri_pb2.UPDATE_POD_SANDBOX | nri_pb2.POST_UPDATE_POD_SANDBOX:
                    world.add_pod(messages.pod(pod))
                case nri_pb2.STOP_POD_SANDBOX:
                    world.stop_pod(pod.id)
                case nri_pb2.REMOVE_POD_SANDBOX:
                    world.remove_pod(pod.id)
                case nri_pb2.START_CONTAINER | nri_pb2.POST_START_CONTAINER:
                    world.started(messages.container(container))
                case nri_pb2.POST_UPDATE_CONTAINER:
                    world.touch(container.id)
                case nri_pb2.STOP_CONTAINER:
                    world.stopped(messages.container(container))
                case nri_pb2.REMOVE_CONTAINER:
                    world.removed(container.id)
                case _:
                    pass  # nothing to learn from it
        self._wake()


def _status(error: Exception) -> Status:
    if isinstance(error, DecodeError):
        return Status.INVALID_ARGUMENT
    return code_for(error, STATUS) if isinstance(error, UbError) else Status.INTERNAL


def _pod_event(event: int) -> Handler:
    def handle(plugin: Plugin, payload: bytes, wait_s: float) -> Message:
        plugin._event(event, nri_pb2.PodRequest.FromString(payload).pod, nri_pb2.Container(), wait_s)
        return nri_pb2.Empty()

    return handle


def _container_event(event: int) -> Handler:
    def handle(plugin: Plugin, payload: bytes, wait_s: float) -> Message:
        message = nri_pb2.ContainerRequest.FromString(payload)
        plugin._event(event, message.pod, message.container, wait_s)
        return nri_pb2.Empty()

    return handle


_HANDLERS: dict[str, Handler] = {
    "Configure": Plugin._configure,
    "Synchronize": Plugin._synchronize,
    "CreateContainer": Plugin._create,
    "UpdateContainer": Plugin._update,
    "StateChange": Plugin._state_change,
    "Shutdown": lambda *_: nri_pb2.Empty(),
    "RunPodSandbox": _pod_event(nri_pb2.RUN_POD_SANDBOX),
    "UpdatePodSandbox": Plugin._update_pod,
    "PostUpdatePodSandbox": _pod_event(nri_pb2.POST_UPDATE_POD_SANDBOX),
    "StopPodSandbox": _pod_event(nri_pb2.STOP_POD_SANDBOX),
    "RemovePodSandbox": _pod_event(nri_pb2.REMOVE_POD_SANDBOX),
    "PostCreateContainer": _container_event(nri_pb2.POST_CREATE_CONTAINER),
    "StartContainer": _container_event(nri_pb2.START_CONTAINER),
    "PostStartContainer": _container_event(nri_pb2.POST_START_CONTAINER),
    "PostUpdateContainer": _container_event(nri_pb2.POST_UPDATE_CONTAINER),
    "StopContainer": _container_event(nri_pb2.STOP_CONTAINER),
    "RemoveContainer": _container_event(nri_pb2.REMOVE_CONTAINER),
}

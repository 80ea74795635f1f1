"""Keep one resource registered with kubelet, across its restarts and ours.

Two ways in. *watcher*: our socket in ``plugins_registry`` is found by kubelet, which asks it who it is; a restarted
kubelet finds it again. *legacy*: our socket is in ``device-plugins`` and we tell kubelet; a starting kubelet empties
that folder, so the socket must be made again and kubelet told again.

Either way kubelet then holds a stream open on which it hears of our devices. While it does, all is well. When it does
not, what to do next is decided by ``next_move``, a plain function of what can be seen; it is asked once a second.

Source: kubernetes pkg/kubelet/{pluginmanager,cm/devicemanager/plugin/v1beta1}; k8s.io/kubelet
pkg/apis/{pluginregistration/v1,deviceplugin/v1beta1}.
"""

import contextlib
import logging
import stat
import time
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import grpc
from ubproto.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from ubproto.deviceplugin.v1beta1 import deviceplugin_pb2_grpc
from ubproto.pluginregistration.v1 import pluginregistration_pb2 as registry_pb
from ubproto.pluginregistration.v1 import pluginregistration_pb2_grpc

from cni_ub.agent.deviceplugin import API_VERSION, DevicePlugin, options
from cni_ub.agent.service import Loop
from cni_ub.agent.settings import Registration
from cni_ub.agent.status import ReasonToStatus
from ubhost.errors import HostFault
from ubhost.socketpath import identity, listens, short

PATIENCE_S = 10.0  # kubelet looks at its folders once a second; after this it will not come by itself
MOST_PATIENCE_S = 160.0  # each time in vain we wait twice as long, up to this
REFUSED_SHARE = 5  # a kubelet that does not register us is called again after this part of our patience
CALL_S = 5.0
THREADS = 8  # a stream each of kubelet and of its predecessor that is not known to be dead yet, and calls

log = logging.getLogger(__name__)


class Way(Enum):
    WATCHER = "plugin watcher"
    LEGACY = "registration call"


class Move(Enum):
    """What to do now: nothing, make the socket (again), or make it for the other way in."""

    WAIT = "wait"
    SERVE = "serve"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Seen:
    """What can be seen of kubelet and of our socket.

    ``is_watched``: kubelet listens to us; ``is_patience_over``: it has not for too long; ``is_kubelet_there``: it
    would hear a call.
    """

    way: Way
    is_serving: bool
    has_socket: bool
    is_watched: bool
    has_kubelet_changed: bool
    is_patience_over: bool
    has_registry: bool
    is_kubelet_there: bool


def first_way(wanted: Registration, *, has_registry: bool) -> Way:
    if wanted is Registration.LEGACY or (wanted is Registration.AUTO and not has_registry):
        return Way.LEGACY
    return Way.WATCHER


def next_move(seen: Seen, wanted: Registration) -> Move:
    """Decide what to do. Making the socket again is how either way starts over."""
    if not seen.is_serving or not seen.has_socket:
        return Move.SERVE
    if seen.is_watched:  # whichever way it came: to change now would take all devices from it for seconds
        return Move.WAIT
    if seen.way is Way.LEGACY and seen.has_kubelet_changed:  # it restarted: it knows nothing of us
        return Move.SWITCH if wanted is Registration.AUTO and seen.has_registry else Move.SERVE
    if not seen.is_patience_over:
        return Move.WAIT
    if seen.way is Way.WATCHER and wanted is Registration.AUTO and seen.is_kubelet_there:
        return Move.SWITCH
    return Move.SERVE


class Registrar(pluginregistration_pb2_grpc.RegistrationServicer):
    """Tells kubelet's plugin watcher who we are, and hears what came of it."""

    def __init__(self, resource: str, endpoint: Path) -> None:
        self.refusal: str | None = None
        self._resource = resource
        self._endpoint = endpoint

    def GetInfo(self, request: registry_pb.InfoRequest, context: grpc.ServicerContext) -> registry_pb.PluginInfo:
        return registry_pb.PluginInfo(
            type="DevicePlugin",
            name=self._resource,
            endpoint=str(self._endpoint),
            supported_versions=[API_VERSION],
        )

    def NotifyRegistrationStatus(
        self, request: registry_pb.RegistrationStatus, context: grpc.ServicerContext
    ) -> registry_pb.RegistrationStatusResponse:
        self.refusal = None if request.plugin_registered else request.error or "no reason given"
        if self.refusal:
            log.error("kubelet refused the resource", extra={"resource": self._resource, "why": self.refusal})
        else:
            log.info("kubelet registered the resource", extra={"resource": self._resource})
        return registry_pb.RegistrationStatusResponse()


class KubeletRegistration:
    """One resource, served and registered. A ``Service`` of the agent."""

    def __init__(
        self,
        folder: Path,
        wanted: Registration,
        plugin: Callable[[], DevicePlugin],
        resource: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``plugin`` makes the object that serves; a new one for each socket."""
        self.name = f"device plugin {resource}"
        self._resource = resource
        self._registry = folder / "plugins_registry"
        self._plugins = folder / "device-plugins"
        self._wanted = wanted
        self._make = plugin
        self._clock = clock
        self._way: Way | None = None
        self._server: grpc.Server | None = None
        self._opened = contextlib.ExitStack()  # what the server's address needs while it serves
        self._plugin: DevicePlugin | None = None
        self._registrar: Registrar | None = None
        self._bound: Path | None = None
        self._socket_identity: tuple[int, int] | None = None
        self._kubelet_identity: tuple[int, int] | None = None
        self._patience_s = PATIENCE_S
        self._deadline = 0.0
        self._loop = Loop(self.name, self._turn)

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()
        self._close()

    def ready(self) -> str | None:
        if self._loop.trouble:
            return self._loop.trouble
        if self._registrar and self._registrar.refusal:
            return f"kubelet refused {self._resource}: {self._registrar.refusal}"
        if not (self._plugin and self._plugin.is_watched):
            return f"kubelet does not listen to {self._resource}"
        return None

    def _turn(self) -> None:
        if self._plugin and self._plugin.is_watched:
            self._patience_s = PATIENCE_S
            self._deadline = self._clock() + PATIENCE_S
        if self._way is None:
            self._way = first_way(self._wanted, has_registry=self._registry.is_dir())
        match next_move(self._see(self._way), self._wanted):
            case Move.WAIT:
                pass
            case Move.SERVE:
                self._serve(self._way)
            case Move.SWITCH:
                self._way = Way.LEGACY if self._way is Way.WATCHER else Way.WATCHER
                self._serve(self._way)

    def _see(self, way: Way) -> Seen:
        path = self._plugins / "kubelet.sock"
        kubelet, is_patience_over = identity(path), self._clock() >= self._deadline
        return Seen(
            way=way,
            is_serving=self._server is not None,
            has_socket=self._has_socket(),
            is_watched=self._plugin is not None and self._plugin.is_watched,
            has_kubelet_changed=kubelet is not None and kubelet != self._kubelet_identity,
            is_patience_over=is_patience_over,
            has_registry=self._registry.is_dir(),
            is_kubelet_there=is_patience_over and listens(path),
        )

    def _has_socket(self) -> bool:
        """Whether our socket is still where we made it: a starting kubelet removes it."""
        return self._bound is not None and identity(self._bound) == self._socket_identity

    def _path(self, way: Way) -> Path:
        folder = self._registry if way is Way.WATCHER else self._plugins
        return folder / f"{self._resource.replace('/', '_')}.sock"

    def _serve(self, way: Way) -> None:
        """Make the socket, anew if there is one, and tell kubelet where that is our part.

        Raises:
            HostFault: kubelet's folder is missing, or kubelet does not answer.
        """
        self._close()
        path = self._path(way)
        if not path.parent.is_dir():
            raise HostFault(f"{path.parent} is missing: kubelet has not run on this node, or it is not mounted here")
        kubelet = self._plugins / "kubelet.sock"
        self._kubelet_identity = identity(kubelet)
        if way is Way.LEGACY and self._kubelet_identity is None:
            raise HostFault(f"kubelet is not running: there is no {kubelet}")
        self._open(path, way)
        self._deadline = self._clock() + self._patience_s
        self._patience_s = min(2 * self._patience_s, MOST_PATIENCE_S)
        if way is Way.LEGACY:
            self._register(path, kubelet)

    def _open(self, path: Path, way: Way) -> None:
        plugin, registrar = self._make(), Registrar(self._resource, path)
        server = grpc.server(
            futures.ThreadPoolExecutor(THREADS, thread_name_prefix="kubelet"), interceptors=[ReasonToStatus()]
        )
        deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server(plugin, server)
        if way is Way.WATCHER:
            pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(registrar, server)
        with contextlib.ExitStack() as opened:
            _bind(server, path, opened.enter_context(short(path)))
            self._opened = opened.pop_all()
        server.start()
        self._server, self._plugin, self._registrar = server, plugin, registrar
        self._bound, self._socket_identity = path, identity(path)
        log.info("serving a resource", extra={"resource": self._resource, "socket": str(path), "way": way.value})

    def _register(self, path: Path, kubelet: Path) -> None:
        request = pb.RegisterRequest(
            version=API_VERSION, endpoint=path.name, resource_name=self._resource, options=options()
        )
        try:
            with short(kubelet) as address, grpc.insecure_channel(f"unix:{address}") as channel:
                deviceplugin_pb2_grpc.RegistrationStub(channel).Register(request, timeout=CALL_S)
        except grpc.RpcError as error:
            self._deadline = self._clock() + self._patience_s / REFUSED_SHARE
            raise HostFault(f"kubelet at {kubelet} did not register {self._resource}: {error.details()}") from error
        log.info("kubelet registered the resource", extra={"resource": self._resource})

    def _close(self) -> None:
        """Stop serving; wait until gRPC has removed its socket, which it does by name."""
        if self._plugin:
            self._plugin.close()
        if self._server:
            self._server.stop(grace=0.5).wait()
        self._opened.close()
        if self._bound and self._has_socket():
            self._bound.unlink(missing_ok=True)
        self._server = self._plugin = self._registrar = self._bound = self._socket_identity = None


def _bind(server: grpc.Server, path: Path, address: str) -> None:
    """Listen at ``path``, for root only; ``address`` is the same path for gRPC.

    Raises:
        HostFault: something else than a socket is there, or the folder cannot be written.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise HostFault(f"{path} exists and is not a socket")
            path.unlink()
        server.add_insecure_port(f"unix:{address}")
        path.chmod(0o600)  # nobody is answered before the server starts
    except (OSError, RuntimeError) as error:
        raise HostFault(f"cannot listen on {path}: {error}") from error

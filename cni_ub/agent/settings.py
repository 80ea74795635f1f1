"""What the agent's configuration file may say about devices, kubelet, the CNI configuration and publication.

    resources:
      - name: unifiedbus.com/ub_net_device     # exclusive, all devices: this is the default
      - name: unifiedbus.com/ub_net_device_shared
        isolation: shared
        devices: [urma_7, urma_8]
        replicas: 16
    kubelet: {folder: /var/lib/kubelet, registration: auto}
    conf: {mode: conflist, folder: /etc/cni/net.d, network: {zeroCopy: {sockets: auto}}}
    metrics_address: 127.0.0.1:9478

Paths are below ``UB_ROOT``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

from ubhost.address import host_and_port
from ubhost.provider import Sharing

DEFAULT_RESOURCE = "unifiedbus.com/ub_net_device"
MAX_REPLICAS = 1024
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Resource:
    """One extended resource of the node. ``devices`` are names with ``*`` and ``?``; a device belongs to the first
    resource that names it. ``replicas`` pods can hold a shared device at a time."""

    name: str = DEFAULT_RESOURCE
    isolation: Sharing = Sharing.EXCLUSIVE
    devices: tuple[str, ...] = ("*",)
    replicas: int = 1

    def __post_init__(self) -> None:
        domain, _, name = self.name.partition("/")
        if not _is_resource(domain, name):
            raise ValueError(f"resource name {self.name!r} is not of the form domain.example/name")
        if not 1 <= self.replicas <= MAX_REPLICAS:
            raise ValueError(f"replicas {self.replicas} of {self.name} is not between 1 and {MAX_REPLICAS}")
        if self.replicas > 1 and self.isolation is Sharing.EXCLUSIVE:
            raise ValueError(f"replicas {self.replicas} of {self.name}: an exclusive device has one holder")

    def is_for(self, device: str) -> bool:
        return any(fnmatchcase(device, pattern) for pattern in self.devices)

    @property
    def variable(self) -> str:
        """The name of the environment variable that tells a container its devices: ``UB_NET_DEVICE``."""
        return re.sub(r"[^A-Z0-9]", "_", self.name.partition("/")[2].upper())


def _is_resource(domain: str, name: str) -> bool:
    """Whether kubelet takes it for an extended resource. Source: kubernetes pkg/apis/core/v1/helper."""
    if "kubernetes.io" in domain or domain.startswith("requests."):
        return False
    return bool(len(domain) <= 253 - len("requests.") and _DOMAIN.fullmatch(domain) and _NAME.fullmatch(name))


class Registration(Enum):
    """How kubelet learns of a resource.

    ``watcher``: a socket in plugins_registry, which kubelet finds; survives its restarts by itself.
    ``legacy``: a call to kubelet's own socket in device-plugins.
    ``auto``: watcher, and legacy if kubelet does not come.
    """

    AUTO = "auto"
    WATCHER = "watcher"
    LEGACY = "legacy"


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    folder: str = "/var/lib/kubelet"
    registration: Registration = Registration.AUTO
    is_used: bool = True  # false: no device plugin, for a node without kubelet


class ConfMode(Enum):
    """How ub-cni gets into the node's CNI configuration. Source: design section 6."""

    OFF = "off"
    CONFLIST = "conflist"
    SUBDIR = "subdir"
    NAD = "nad"


@dataclass(frozen=True, slots=True)
class ConfSettings:
    """``network`` are the keys of ub-cni's own configuration; ``nad_name`` and ``nad_namespace`` name the
    NetworkAttachmentDefinition."""

    mode: ConfMode = ConfMode.OFF
    folder: str = "/etc/cni/net.d"
    network: Mapping[str, Any] = field(default_factory=dict)
    nad_name: str = "ub"
    nad_namespace: str = "default"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything above."""

    resources: tuple[Resource, ...] = (Resource(),)
    kubelet: KubeletSettings = KubeletSettings()
    conf: ConfSettings = ConfSettings()
    metrics_address: str | None = None
    node_features: bool = True

    def __post_init__(self) -> None:
        names = [resource.name for resource in self.resources]
        doubles = sorted({name for name in names if names.count(name) > 1})
        if doubles:
            raise ValueError(f"resource {', '.join(doubles)} is given twice")
        if self.metrics_address is not None:
            host_and_port(self.metrics_address)

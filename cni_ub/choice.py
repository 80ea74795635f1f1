"""Which device an attachment gets: the first of five sources that says something.

    1. runtimeConfig.deviceID     the runtime's explicit intent
    2. deviceID, pciBusID         Multus puts them into the configuration
    3. CNIDeviceInfoFile          what the device plugin wrote about the device
    4. PodResources               what kubelet gave to the pod; the agent asks, for its k-th attachment the k-th device
    5. nothing                    chained: the pod has no UB device

Source: design section 4; reference/cni.md section 7.4.
"""

import json
import os

from cni_ub.agent.deviceid import device_of
from cni_ub.errors import Undecodable
from cni_ub.host import Host
from cni_ub.protocol import Request
from ubhost.errors import Conflict, InvalidRequest, NotFound
from ubhost.provider import Device, Provider

MAX_DEVICE_INFO = 1 << 20  # bytes


def choose_device(host: Host, request: Request, provider: Provider) -> Device | None:
    """Return the device for an attachment; ``None`` if it is chained and its pod has none.

    Raises:
        InvalidRequest: nobody named a device, and the plugin is not chained.
        NotFound: the named device is not on this host.
        Conflict: kubelet gave the pod other devices than the named one.
    """
    conf = request.conf
    given = _given_by_kubelet(host, request)
    name = conf.device_id or _from_file(conf.device_info_file)
    if name:
        device = provider.device(device_of(name))
        if given and device.id not in given:
            raise Conflict(f"deviceID is {name}, but kubelet gave pod {request.pod} {', '.join(given)}")
        return device
    if name := _next(host, request, given):
        return provider.device(name)
    if conf.is_chained:
        return None
    raise InvalidRequest("no deviceID: set it, or let Multus or the ub-agent's device plugin provide it")


def _from_file(path: str) -> str:
    """Read the device from a device-info file. Source: device-info-spec 1.1.0; ``ub`` is our own type."""
    if not path:
        return ""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            info = json.loads(file.read(MAX_DEVICE_INFO))
    except FileNotFoundError:  # the runtime passes a path even where no device plugin wrote one
        return ""
    except (OSError, ValueError, RecursionError) as error:
        raise Undecodable(f"CNIDeviceInfoFile {path} cannot be read: {error}") from error
    found = info.get("ub") or info.get("pci") or {} if isinstance(info, dict) else {}
    keys = ("device-id", "rdma-device", "pci-address")
    return next((str(found[key]) for key in keys if isinstance(found, dict) and found.get(key)), "")


def _without_waiting(path: str, flags: int) -> int:
    """Open what may be a FIFO that nobody writes to."""
    return os.open(path, flags | os.O_NONBLOCK)


def _given_by_kubelet(host: Host, request: Request) -> tuple[str, ...]:
    namespace, _, name = request.pod.partition("/")
    if host.devices_of is None or not name:
        return ()
    try:
        return host.devices_of(namespace, name)
    except NotFound:  # kubelet does not know the pod, so it gave it nothing
        return ()


def _next(host: Host, request: Request, given: tuple[str, ...]) -> str:
    """Return the first device of the pod that none of its other attachments has: the k-th for the k-th."""
    taken = {record.device for record in host.ledger.of_container(request.container)}
    return next((device for device in given if device not in taken), "")

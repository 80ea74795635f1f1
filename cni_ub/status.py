"""STATUS: would an ADD succeed now? Read only, and cheap: CRI-O asks every half second until the answer is yes.

Source: containernetworking/cni SPEC.md 1.1.0, "STATUS"; reference/cni.md section 4, H39.
"""

from cni_ub.delegate import ipam_of
from cni_ub.errors import Limited, NotReady
from cni_ub.host import Host
from cni_ub.protocol import NetConf, Request
from ubhost.errors import UbError
from ubhost.provider import Device, Kind, Sharing


def status(host: Host, request: Request) -> None:
    """Say why an ADD would fail.

    Raises:
        NotReady: no driver, no free device, or devices that cannot be isolated.
        Limited: the driver is gone while pods have devices.
        DelegateFailed: the IPAM plugin is not ready.
    """
    if not _may_pass_through(request.conf):
        _refuse_unready(host, request)
    if ipam := ipam_of(host, request):
        ipam.forward("STATUS")


def _may_pass_through(conf: NetConf) -> bool:
    """In a chain every pod of the node passes through, also those that want no device: they must not wait for one.

    STATUS does not tell whether there is a chain. With ``auto``, who names neither a device nor a delegate is in one.
    """
    return conf.mode == "chained" or (conf.mode == "auto" and not conf.ipam_type and not conf.device_id)


def _refuse_unready(host: Host, request: Request) -> None:
    held = host.ledger.held()
    try:
        provider = host.provider()
        devices = provider.devices()
        sharing = provider.sharing()
    except UbError as error:
        raise (Limited if held else NotReady)(str(error)) from error
    if not request.conf.is_shared and sharing is not Sharing.EXCLUSIVE:
        raise NotReady("the host shares its devices with every network namespace (dev_sharing is on)")
    if lost := sorted(held.keys() - {device.id for device in devices}):
        raise Limited(f"devices of running pods are gone: {', '.join(lost)}")
    if not devices:
        raise NotReady("this host has no UB device")
    free = [device for device in devices if device.id not in held or _has_room(request.conf, device, provider.kind)]
    if not free:
        raise NotReady(f"all {len(devices)} devices are in use")
    if not any(device.is_healthy for device in free):
        raise NotReady("none of the free devices is healthy")


def _has_room(conf: NetConf, device: Device, kind: Kind) -> bool:
    """Whether one more pod can share a device that others have."""
    return conf.is_shared and (bool(device.eids) or kind is Kind.RDMA)

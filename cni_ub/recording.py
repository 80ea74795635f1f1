"""What the ledger is to remember of an attachment: who asked, what it takes, how to call its IPAM plugin again.

Source: design section 4.
"""

import time
from dataclasses import replace

from cni_ub.identity import identity_of
from cni_ub.ipam import Ipam
from cni_ub.protocol import NetConf, Request
from cni_ub.results import Result
from ubhost.model import Link
from ubhost.provider import Device
from ubhost.record import Delegate, OriginalLink, Record, State


def first(request: Request, device: Device, ipam: Ipam | None) -> Record:
    """Return the record of an attachment that is asked for, without what only the host can tell."""
    return Record(
        device.id,
        request.container,
        request.ifname,
        request.conf.name,
        State.ATTACHING,
        request.netns,
        nonce=request.nonce,
        since=time.time(),
        pod=request.pod,
        pod_uid=request.args.get("K8S_POD_UID", ""),
        eids=slots(device),
        is_zero_copy=_wants_zero_copy(request.conf),
        delegate=Delegate(ipam.type, dict(ipam.config), _delegate_environ(request)) if ipam else None,
        nodes=device.nodes,
        is_shared=request.conf.is_shared,
    )


def original(link: Link, pod_name: str, addresses: tuple[str, ...]) -> OriginalLink:
    """Return what a release restores of a link of the host."""
    return OriginalLink(
        link.name, link.index, link.mtu, link.mac, link.alias, link.qlen, link.is_up, link.altnames, addresses,
        pod_name=pod_name, group=link.group, is_promisc=link.is_promisc, identity=identity_of(link),
        is_allmulti=link.is_allmulti, has_xdp=link.has_xdp,
    )  # fmt: skip


def slots(device: Device) -> tuple[tuple[str, int, str], ...]:
    return tuple((slot.device, slot.index, str(slot.eid)) for slot in device.eids if not slot.eid.is_zero)


def finished(record: Record, link: Link | None, given: Result) -> Record:
    """Return the record of an attachment that is complete; ``link`` is its netdev in the pod."""
    known = replace(record.link, pod_index=link.index) if record.link and link else record.link
    said = {"ips": [dict(ip) for ip in given.ips], "routes": [dict(route) for route in given.routes]}
    return replace(record, state=State.ATTACHED, link=known, given=said)


def _wants_zero_copy(conf: NetConf) -> bool:
    return conf.sockets != "off" or conf.shared_memory > 0


def _delegate_environ(request: Request) -> dict[str, str]:
    """The part of the environment that DEL needs: no secrets of the runtime go to disk."""
    return {key: value for key, value in request.environ.items() if key.startswith("CNI_") or key == "PATH"}

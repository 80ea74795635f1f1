"""Which IPAM plugin speaks for an attachment."""

from cni_ub.host import Host
from cni_ub.ipam import Ipam
from cni_ub.protocol import Request
from ubhost.record import Record


def ipam_of(host: Host, request: Request) -> Ipam | None:
    """Return the delegate that the configuration names."""
    if not request.conf.ipam_type:
        return None
    return Ipam(request.conf.ipam_type, request.conf.raw, request.environ, host.is_short_lived)


def remembered_ipam(host: Host, record: Record) -> Ipam | None:
    """Return the delegate of an attachment whose runtime does not speak for it now."""
    if record.delegate is None:
        return None
    return Ipam(record.delegate.type, record.delegate.config, record.delegate.environ, host.is_short_lived)


def ipam_to_release(host: Host, request: Request, record: Record) -> Ipam | None:
    """Return the delegate for a DEL. One that is not there is asked for only if it may hold addresses."""
    asked = ipam_of(host, request)
    if asked is None:
        return remembered_ipam(host, record)
    holds_some = record.delegate is not None or record.is_damaged
    return asked if holds_some or asked.is_there() else None

"""Better ways than TCP over the netdev, for a pod that asked for them: set up by ADD, ended by every release.

Nobody else pays for the imports. Source: design section 5.
"""

from cni_ub.host import Host
from cni_ub.protocol import Request
from cni_ub.results import Result
from ubhost.errors import UbError
from ubhost.provider import Kind
from ubhost.record import Record


def set_up(host: Host, request: Request, record: Record, kind: Kind, ifname: str, given: Result, pod: int) -> None:
    """Offer the pod what it asked for; ``ifname`` is the netdev in it, "" if it has none.

    Raises:
        UbError: a way that was asked for by name is not there.
    """
    from ubhost import zerocopy
    from ubhost.paths import Sockets

    attachment = zerocopy.Attachment(
        record.container,
        record.ifname,
        record.network,
        record.pod,
        kind,
        record.device,
        ifname,
        tuple(ip["address"] for ip in given.ips),
        tuple(eid for _, _, eid in record.eids),
        Sockets(request.conf.sockets),
        request.conf.shared_memory,
    )
    zerocopy.ZeroCopy(host.roots).attach(attachment, pod)


def end(host: Host, record: Record) -> list[str]:
    """Take back what was offered; return what could not be, in words."""
    if not record.is_zero_copy:
        return []
    from ubhost import zerocopy

    try:
        zerocopy.ZeroCopy(host.roots).detach(record.container, record.ifname)
    except UbError as error:
        return [f"zero-copy: {error}"]
    return []

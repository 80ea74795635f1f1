"""Give a device back: the one way for DEL, for an ADD that failed, and for what a killed call left behind.

Best effort: everything that can be done is done, and what could not be is returned in words. A record leaves the
ledger when its device is back as it was; until then whoever finds it can call this again.

Source: design section 4; reference/cni.md section 4, A and C.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

from cni_ub import ways
from cni_ub.beside import beside
from cni_ub.holding import held_by, look_at, netdev_of, node_of, others_of
from cni_ub.host import Host
from cni_ub.ipam import Ipam
from cni_ub.node import Node
from cni_ub.plan import Seen
from cni_ub.planback import Held, LinkRelease, plan_device_release, plan_link_release
from cni_ub.steps import Step
from ubhost.errors import Busy, UbError
from ubhost.provider import Kind, Provider
from ubhost.record import Record, State

LOG = logging.getLogger("cni_ub")
HOME_PATIENCE = 2.0  # seconds
_LOST = (
    "a record and its copy are damaged: name, EIDs and bandwidth of the device are put back; its MTU, queue length,"
    " alternative names, addresses and service levels of before are not known, and stay as the pod left them"
)


@dataclass(slots=True)
class Outcome:
    """What became of a release: ``problems`` in words; ``is_pending``: kernel or manager will take longer."""

    problems: list[str] = field(default_factory=list)
    is_pending: bool = False


def release(host: Host, record: Record, pod: int | None, ipam: Ipam | None) -> Outcome:
    """Give back all of one attachment; its locks are held.

    Args:
        pod: the namespace that the runtime named, if it named one.
        ipam: the delegate to release the addresses with; ``None`` if the attachment has none.
    """
    of_link, of_device = Outcome(), Outcome()
    with ExitStack() as stack:
        try:
            node = stack.enter_context(node_of(host, record, pod))
            held = held_by(host, record, node)
        except UbError as error:
            of_link.problems.append(str(error))
            with _deleting(ipam, of_link.problems):
                pass
        else:
            record = replace(record, members=held.members)
            if record.is_damaged:  # what is not known of it is made as of a free device
                LOG.warning(_LOST, extra={"device": record.device, "of": record.container})
                record = replace(record, is_allocated=True, is_zero_copy=True, limit_mbps=(0, 0))
            give_back = partial(_give_back_device, host, record, node, held, of_device)
            is_rdma = node.provider.kind is Kind.RDMA  # a soft one dies when its netdev leaves the namespace before it
            if is_rdma:
                give_back()
            with nullcontext() if is_rdma else beside(give_back):
                _bring_link_home(record, node, held, ipam, of_link)
    outcome = Outcome(of_device.problems + of_link.problems, of_device.is_pending or of_link.is_pending)
    _settle(host, record, outcome)
    return outcome


def _give_back_device(host: Host, record: Record, node: Node, held: Held, outcome: Outcome) -> None:
    """Take the device out of the pod, and undo everything that was set up with it."""
    try:
        seen = node.observe_device(Seen(), held.members, held.device if held.limit else "", held.eids)
    except UbError as error:
        outcome.problems.append(str(error))
        seen = Seen()
    plan = plan_device_release(held, seen)
    outcome.problems += _do(node, plan.device)
    outcome.problems += _do(node, plan.limits)
    outcome.problems += ways.end(host, record)
    if not any(other.is_allocated or other.is_damaged for other in others_of(host, record)):
        _free(node.provider, record, outcome)


def _bring_link_home(record: Record, node: Node, held: Held, ipam: Ipam | None, outcome: Outcome) -> None:
    plan = LinkRelease()
    try:
        plan = plan_link_release(held, _observe_link(node, held, record, outcome))
        outcome.problems += _do(node, plan.quiet)
    except UbError as error:
        outcome.problems.append(str(error))
    with _deleting(ipam, outcome.problems):  # the addresses are released while the link, silent by now, travels
        outcome.problems += _do(node, plan.home)


def _free(provider: Provider, record: Record, outcome: Outcome) -> None:
    """Give the device back to the host's manager; while that is down, a later call must."""
    if not record.is_allocated:
        return
    try:
        provider.free(record.device)
    except Busy as error:
        LOG.warning("a device is not freed yet", extra={"device": record.device, "error": str(error)})
        outcome.is_pending = True
    except UbError as error:
        outcome.problems.append(str(error))


def _observe_link(node: Node, held: Held, record: Record, outcome: Outcome) -> Seen:
    """Look for the link; the driver is asked only if it is nowhere, and the kernel may be about to return it."""
    name = record.link.pod_name if record.link and record.link.pod_name else record.ifname
    seen = node.observe_held(held, name)
    if held.link and not (seen.pod or seen.host):  # only now is it worth asking the provider
        held = replace(held, netdev=netdev_of(look_at(record, node.provider)))
        if node.fetch_stray(held) or _await_home(node, held):
            seen = node.observe_held(held, name)
        outcome.is_pending = bool(held.netdev) and seen.host is None
        if outcome.is_pending and node.link_in_pod(name):
            outcome.problems.append(
                f"the netdev of {record.device} is nowhere to be seen, and {name} in the pod is another link"
            )
    return seen


def _await_home(node: Node, held: Held) -> bool:
    """The kernel returns the netdevs of a dead namespace when it comes round to it; give it a moment."""
    deadline = time.monotonic() + HOME_PATIENCE
    while held.netdev and time.monotonic() < deadline:
        if node.observe_held(held, "").host:
            return True
        time.sleep(0.01)
    return False


def _do(node: Node, steps: Iterable[Step]) -> list[str]:
    """Do the steps up to the first that fails."""
    for step in steps:
        LOG.debug("step", extra={"step": repr(step)})
        try:
            node.do(step)
        except UbError as error:
            return [f"{type(step).__name__}: {error}"]
    return []


@contextmanager
def _deleting(ipam: Ipam | None, problems: list[str]) -> Iterator[None]:
    """Run the delegate's DEL beside the body."""
    try:
        running = ipam.start_delete() if ipam else None
    except UbError as error:
        problems.append(str(error))
        running = None
    yield
    try:
        if ipam and running:
            ipam.finish_delete(running)
    except UbError as error:
        problems.append(str(error))


def _settle(host: Host, record: Record, outcome: Outcome) -> None:
    try:
        if outcome.problems or outcome.is_pending:
            extra = {"device": record.device, "problems": outcome.problems, "pending": outcome.is_pending}
            LOG.warning("an attachment is not wholly released", extra=extra)
            host.ledger.write(replace(record, state=State.DETACHING))
        else:
            host.ledger.remove(record)
    except UbError as error:
        outcome.problems.append(str(error))

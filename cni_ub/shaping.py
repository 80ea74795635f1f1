"""Look at and set what a pod may send and receive over its link.

Source: tc(8), tc-tbf(8); ``ubhost.kernel.tc`` for how a limit is built.
"""

from cni_ub.plan import Seen, Wanted
from cni_ub.steps import LimitReceiving, LimitSending
from ubhost.errors import NotFound
from ubhost.kernel import tc
from ubhost.kernel.rtnl import Rtnl
from ubhost.model import Link


def observe(pod: Rtnl, want: Wanted) -> Seen:
    """Return the limits of a link, of those that are wanted; none if there is no such link."""
    link = pod.link(want.ifname)
    if link is None:
        return Seen()
    shaper = pod.link(want.shaper) if want.shaper else None
    is_led = shaper is not None and tc.is_redirected(pod, link.index)
    return Seen(
        sending=tc.limit_of(pod, link.index) if want.sending else None,
        receiving=tc.limit_of(pod, shaper.index) if shaper and is_led else None,
    )


def limit(pod: Rtnl, step: LimitSending | LimitReceiving) -> None:
    """Carry out a step.

    Raises:
        NotFound: the link is gone.
        HostFault: the kernel refused.
    """
    link = pod.link(step.name) if step.name else None
    if isinstance(step, LimitReceiving):
        _limit_receiving(pod, link, step)
    elif step.rate:
        tc.limit(pod, _there(link, step.name).index, step.rate)
    else:
        tc.unlimit(pod, _there(link, step.name).index)


def _limit_receiving(pod: Rtnl, link: Link | None, step: LimitReceiving) -> None:
    shaper = pod.link(step.shaper)
    if step.rate is None:
        if link:
            tc.unredirect(pod, link.index)
        if shaper:
            pod.delete(shaper.index)
        return
    link = _there(link, step.name)
    if shaper is None:
        pod.add_ifb(step.shaper)
        shaper = _there(pod.link(step.shaper), step.shaper)
    tc.limit(pod, shaper.index, step.rate)
    tc.unredirect(pod, link.index)
    tc.redirect(pod, link.index, shaper.index)


def _there(link: Link | None, name: str) -> Link:
    if link is None:
        raise NotFound(f"no link {name} on the pod")
    return link

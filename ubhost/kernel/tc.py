"""Rates of a link, enforced by the kernel's traffic control: what it sends, and what it receives.

Sending is a token bucket (tbf) at the link itself. Receiving cannot be queued at the link, so it is led through an
ifb, a link that exists for this, and the bucket is there. Rates are in bits a second, bursts in bytes.

Source: tc-tbf(8), tc-mirred(8), linux/pkt_sched.h, linux/pkt_cls.h, linux/tc_act/tc_mirred.h; net/sched/sch_tbf.c.
"""

import errno
import struct

from ubhost.kernel.rtmessages import NLA_F_NESTED
from ubhost.kernel.rtnl import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Refused, Rtnl
from ubhost.model import Rate
from ubhost.netlink import NLM_F_ACK, NLM_F_DUMP, attribute, attributes

RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC, RTM_NEWTFILTER = 36, 37, 38, 44
TC_H_ROOT, TC_H_INGRESS, INGRESS_HANDLE = 0xFFFFFFFF, 0xFFFFFFF1, 0xFFFF0000
TCA_KIND, TCA_OPTIONS = 1, 2
TCA_TBF_PARMS, TCA_TBF_RATE64, TCA_TBF_BURST = 1, 4, 6
TCA_U32_SEL, TCA_U32_ACT, TC_U32_TERMINAL = 5, 7, 1
TCA_ACT_KIND, TCA_ACT_OPTIONS, TCA_MIRRED_PARMS = 1, 2, 2
TC_ACT_STOLEN, TCA_EGRESS_REDIR = 4, 1
TC_LINKLAYER_ETHERNET = 1  # the kernel then computes times itself, and wants no table from us
ETH_P_ALL = 0x0003

TCMSG = struct.Struct("=BxxxiIII")  # family, index, handle, parent, info
RATESPEC = struct.Struct("=BBHhHI")  # cell log, link layer, overhead, cell align, mpu, rate in bytes a second
TBF_QOPT = struct.Struct("=12s12sIII")  # rate, peak rate, limit in bytes, buffer, mtu
U32_SEL = struct.Struct("=BBBxHHhhI")  # flags, offshift, keys, offmask, off, offoff, hoff, hmask
U32_KEY = struct.Struct("=IIii")  # mask, value, off, offmask
MIRRED = struct.Struct("=IIiiiiI")  # index, capabilities, action, references, bindings; what to do; index of the link

LATENCY = 0.025  # seconds that a packet may wait in the bucket's queue
_U64 = struct.Struct("=Q")
_U32 = struct.Struct("=I")


def limit(rtnl: Rtnl, index: int, rate: Rate) -> None:
    """Let link ``index`` send no faster than ``rate``; this replaces its root queueing discipline."""
    slow = min(rate.bytes_a_second, 0xFFFFFFFF)
    spec = RATESPEC.pack(0, TC_LINKLAYER_ETHERNET, 0, 0, 0, slow)
    queue = min(int(rate.bytes_a_second * LATENCY) + rate.burst, 0xFFFFFFFF)
    options = attribute(TCA_TBF_PARMS, TBF_QOPT.pack(spec, bytes(RATESPEC.size), queue, 0, 0))
    options += attribute(TCA_TBF_BURST, _U32.pack(rate.burst))
    if rate.bytes_a_second > 0xFFFFFFFF:
        options += attribute(TCA_TBF_RATE64, _U64.pack(rate.bytes_a_second))
    body = TCMSG.pack(0, index, 0, TC_H_ROOT, 0) + attribute(TCA_KIND, b"tbf\0")
    rtnl.ask(RTM_NEWQDISC, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, body + _nested(TCA_OPTIONS, options))


def limit_of(rtnl: Rtnl, index: int) -> Rate | None:
    """Return the rate that ``limit`` set; ``None`` if there is none."""
    for reply in rtnl.ask(RTM_GETQDISC, NLM_F_DUMP, TCMSG.pack(0, index, 0, 0, 0)):
        _, at, _, parent, _ = TCMSG.unpack_from(reply.body)
        found = dict(attributes(reply.body[TCMSG.size :]))
        if at == index and parent == TC_H_ROOT and found.get(TCA_KIND) == b"tbf\0":
            return _rate(dict(attributes(found[TCA_OPTIONS])))
    return None


def unlimit(rtnl: Rtnl, index: int) -> None:
    """Take the limit off again."""
    _delete(rtnl, index, TC_H_ROOT)


def redirect(rtnl: Rtnl, index: int, through: int) -> None:
    """Lead everything that link ``index`` receives through the ifb ``through``."""
    ingress = TCMSG.pack(0, index, INGRESS_HANDLE, TC_H_INGRESS, 0) + attribute(TCA_KIND, b"ingress\0")
    rtnl.ask(RTM_NEWQDISC, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, ingress)
    mirred = attribute(TCA_MIRRED_PARMS, MIRRED.pack(0, 0, TC_ACT_STOLEN, 0, 0, TCA_EGRESS_REDIR, through))
    action = attribute(TCA_ACT_KIND, b"mirred\0") + _nested(TCA_ACT_OPTIONS, mirred)
    every_packet = U32_SEL.pack(TC_U32_TERMINAL, 0, 1, 0, 0, 0, 0, 0) + U32_KEY.pack(0, 0, 0, 0)
    options = attribute(TCA_U32_SEL, every_packet) + _nested(TCA_U32_ACT, _nested(1, action))
    protocol = struct.unpack("=H", struct.pack(">H", ETH_P_ALL))[0]
    body = TCMSG.pack(0, index, 0, INGRESS_HANDLE, 1 << 16 | protocol) + attribute(TCA_KIND, b"u32\0")
    rtnl.ask(RTM_NEWTFILTER, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, body + _nested(TCA_OPTIONS, options))


def is_redirected(rtnl: Rtnl, index: int) -> bool:
    """Whether something that link ``index`` receives is led elsewhere by ``redirect``."""
    replies = rtnl.ask(RTM_GETQDISC, NLM_F_DUMP, TCMSG.pack(0, index, 0, 0, 0))
    headers = (TCMSG.unpack_from(reply.body) for reply in replies)
    return any(at == index and parent == TC_H_INGRESS for _, at, _, parent, _ in headers)


def unredirect(rtnl: Rtnl, index: int) -> None:
    _delete(rtnl, index, TC_H_INGRESS, INGRESS_HANDLE)


def _delete(rtnl: Rtnl, index: int, parent: int, handle: int = 0) -> None:
    try:
        rtnl.ask(RTM_DELQDISC, NLM_F_ACK, TCMSG.pack(0, index, handle, parent, 0))
    except Refused as refused:
        if refused.code not in (errno.ENOENT, errno.EINVAL):  # there is none, or only the default one
            raise


def _rate(options: dict[int, bytes]) -> Rate:
    spec, _, _, buffer, _ = TBF_QOPT.unpack_from(options[TCA_TBF_PARMS])
    slow = RATESPEC.unpack(spec)[-1]
    bytes_a_second = _U64.unpack(options[TCA_TBF_RATE64])[0] if TCA_TBF_RATE64 in options else slow
    burst = round(buffer * 64 * bytes_a_second / 1e9)  # the kernel tells it as a time, in ticks of 64 ns
    return Rate(bytes_a_second * 8, burst)


def _nested(kind: int, payload: bytes) -> bytes:
    return attribute(kind | NLA_F_NESTED, payload)

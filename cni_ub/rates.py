"""From what a configuration asks to what is limited: the device by its driver, the netdev by the kernel. Pure.

``qos`` is about the device: UB hardware limits it itself (multiples of 8 Mb/s). Where the driver cannot, the netdev is
limited instead, which no minimum can be promised for. ``runtimeConfig.bandwidth`` is about IP traffic: always the
netdev.

Source: design section 4; reference/ub.md section 8; reference/cni.md sections 1.8 and 6.4.
"""

from typing import TypedDict

from cni_ub.protocol import UNLIMITED_BURST, NetConf
from ubhost.errors import InvalidRequest, Unsupported
from ubhost.model import Rate
from ubhost.provider import Bandwidth, Kind

SMALLEST_BURST = 64 << 10  # bytes: one segment as the stack hands it down
MEGABIT = 1_000_000
STEP_MBPS = 8


class Rates(TypedDict):
    """The part of ``plan.Wanted`` that is about rates."""

    bandwidth: Bandwidth | None
    sending: Rate | None
    receiving: Rate | None


def rates_of(conf: NetConf, kind: Kind) -> Rates:
    """Return what is to be limited, and how.

    Raises:
        InvalidRequest: a driver that limits in steps cannot do that.
        Unsupported: a minimum was asked for where the driver gives none.
    """
    shape, native = conf.qos.shape, conf.qos.bandwidth
    sending = _bucket(shape.egress_rate, shape.egress_burst) if shape else None
    receiving = _bucket(shape.ingress_rate, shape.ingress_burst) if shape else None
    if native and kind is not Kind.RDMA:
        _refuse_uneven(native)
    if native is None or kind is not Kind.RDMA:
        return Rates(bandwidth=native, sending=sending, receiving=receiving)
    if native.min_mbps:
        raise Unsupported(f"qos.minMbps {native.min_mbps}: this device has no driver that guarantees a bandwidth")
    most = _bucket(native.max_mbps * MEGABIT, 0)
    return Rates(bandwidth=None, sending=sending or most, receiving=receiving or most)


def _refuse_uneven(limit: Bandwidth) -> None:
    for key, value in (("minMbps", limit.min_mbps), ("maxMbps", limit.max_mbps)):
        if value % STEP_MBPS:
            raise InvalidRequest(f"qos.{key} {value} is not a multiple of {STEP_MBPS}, the step of the device")


def _bucket(rate: int, burst: int) -> Rate | None:
    """Return the bucket for a rate in bits a second and a burst in bits.

    containerd sends the largest number as burst when the pod asked for a rate only; taken literally it would let half a
    gigabyte pass before anything is limited. Without a burst of its own a bucket holds 10 ms of its rate.
    """
    if not rate:
        return None
    given = burst // 8 if 0 < burst < UNLIMITED_BURST else rate // 8 // 100
    return Rate(rate // 8 * 8, min(max(given, SMALLEST_BURST), 0xFFFFFFFF))

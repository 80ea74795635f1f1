"""Find attachments whose pod is gone or whose call was killed, and release them.

containerd never calls GC, and no runtime repeats a DEL for ever, so the agent looks for itself, and ``ubnode
attachments --repair`` does when a person wants it.

Source: reference/cni.md sections 0.3 and 4, H52.
"""

import logging
from dataclasses import dataclass
from enum import Enum

from cni_ub.collect import release_dead
from cni_ub.holding import holds_in_pod, lives
from cni_ub.host import Host
from ubhost.errors import Busy
from ubhost.record import Record, State

LOG = logging.getLogger("cni_ub")


class Condition(Enum):
    """What is to be said of an attachment."""

    HEALTHY = "attached"
    AT_WORK = "at work"  # a call holds its locks
    REBOOTED = "from before the reboot"
    ABANDONED = "its call was killed"
    UNFINISHED = "its release is not finished"
    DAMAGED = "its record is damaged"
    UNCLEAR = "its record is damaged, and a pod has the device, or may have it: DEL releases it"
    ORPHANED = "its pod is gone"

    @property
    def is_repairable(self) -> bool:
        return self not in (Condition.HEALTHY, Condition.AT_WORK, Condition.UNCLEAR)


@dataclass(frozen=True, slots=True)
class Finding:
    record: Record
    condition: Condition
    problems: tuple[str, ...] = ()  # what a repair could not do
    is_tried: bool = False  # by a repair


def inspect(host: Host) -> tuple[Finding, ...]:
    """Look at every attachment; change nothing."""
    return tuple(Finding(record, _condition(host, record)) for record in host.ledger.records())


def repair(host: Host, gone: str = "") -> tuple[Finding, ...]:
    """Release what is dead; return what was found, before the repair.

    Args:
        gone: a container whose pod is gone, says somebody who can tell where its damaged record does not.
    """
    return tuple(_repaired(host, finding, gone) for finding in inspect(host))


def _repaired(host: Host, finding: Finding, gone: str) -> Finding:
    is_said_dead = finding.condition is Condition.UNCLEAR and finding.record.container == gone
    if not (finding.condition.is_repairable or is_said_dead):
        return finding
    problems = release_dead(host, finding.record)
    if problems:
        LOG.warning("an attachment cannot be repaired", extra={"device": finding.record.device, "problems": problems})
    return Finding(finding.record, finding.condition, tuple(problems), is_tried=True)


def _condition(host: Host, record: Record) -> Condition:
    try:
        with host.ledger.attachment_lock(record.container, record.ifname, 0), host.ledger.device_lock(record.device, 0):
            pass
    except Busy:
        return Condition.AT_WORK
    if record.is_damaged:
        return Condition.UNCLEAR if holds_in_pod(host, record) else Condition.DAMAGED
    if record.boot_id != host.ledger.boot_id:
        return Condition.REBOOTED
    if record.state is State.ATTACHING:
        return Condition.ABANDONED
    if record.state is State.DETACHING:
        return Condition.UNFINISHED
    return Condition.HEALTHY if lives(host, record) else Condition.ORPHANED

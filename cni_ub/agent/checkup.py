"""What ``ubnode doctor`` finds, said once in the log when the agent starts: versions that do not fit, what is off."""

import logging
import threading

from ubhost.doctor import report
from ubhost.doctor.findings import Finding, Verdict
from ubhost.doctor.look import look
from ubhost.roots import Roots

log = logging.getLogger(__name__)
LEVELS = {Verdict.PROBLEM: logging.ERROR, Verdict.WARNING: logging.WARNING}


def begin(roots: Roots) -> None:
    """Look and tell in the background: it takes a while, and whoever calls us meanwhile must not wait for it."""
    threading.Thread(target=_run, args=(roots,), name="checkup", daemon=True).start()


def _run(roots: Roots) -> None:
    try:
        tell(report.examine(look(roots)))
    except Exception:  # a host that the doctor cannot look at is not the end of the agent
        log.exception("the node could not be examined")


def tell(findings: tuple[Finding, ...]) -> None:
    """Log what somebody should do something about."""
    for finding in findings:
        if finding.verdict in LEVELS:
            extra = {"check": finding.check, "found": finding.title, "cause": finding.cause, "next": finding.next_step}
            log.log(LEVELS[finding.verdict], "this node is not as it should be", extra=extra)

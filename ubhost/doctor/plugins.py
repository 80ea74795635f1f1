"""Checks of our own programs on this node, and of what they wrote down. Pure: from facts to findings."""

from collections.abc import Iterator

from ubhost.doctor.cluster import uses_ub_cni
from ubhost.doctor.facts import Daemon, Facts
from ubhost.doctor.findings import Finding, Verdict, ok, problem, warning

MISSED = {
    "ub-agent": "CNI calls work, but each starts the whole plugin; no device is offered to kubelet",
    "ub-csi": "no volume can be mounted or unmounted here",
    "nri-qos": "new containers get no class and no place, and offline work stays at its last limits",
}
"""What a node lacks without each of them."""


def check(facts: Facts) -> Iterator[Finding]:
    """Yield what is to be said of our own side."""
    if not facts.is_root:
        yield warning(
            "rights",
            "this was not looked at as root",
            "sockets, records and configuration that only root may read count as missing",
            "run it as root: sudo ubnode doctor",
        )
    for daemon in facts.daemons:
        yield from _daemon(daemon, is_wanted=daemon.name == "ub-agent" and uses_ub_cni(facts))
    if facts.ledger_trouble and facts.is_root:
        yield problem(
            "records",
            "the records of attachments cannot be read",
            f"{facts.ledger_trouble}; without them no device is given out",
            "move what lies there out of the way, and restart ub-agent",
        )
    if facts.damaged:
        yield warning(
            "records",
            f"the records of {len(facts.damaged)} attachments cannot be read: {' '.join(facts.damaged[:8])}",
            "a torn or foreign file in /var/lib/ub-node/attachments; these devices are given to nobody until then",
            "ubnode attachments --repair",
        )


def _daemon(daemon: Daemon, *, is_wanted: bool) -> Iterator[Finding]:
    if daemon.answers:
        yield ok(daemon.name, f"{daemon.name} answers")
    elif daemon.answers is False and (daemon.unit or daemon.socket.exists or is_wanted):
        unit = daemon.unit
        start = f"systemctl start {unit}; journalctl -u {unit}"
        yield Finding(
            daemon.name,
            Verdict.PROBLEM if daemon.name == "ub-csi" else Verdict.WARNING,
            f"{daemon.name} is not running: {'nobody answers' if daemon.socket.exists else 'no socket'} at "
            f"{daemon.socket.path}",
            MISSED[daemon.name],
            start if unit else "start it; in a cluster, look at its DaemonSet and at its pod's log",
        )

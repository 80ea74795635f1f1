"""Releases, every so often, the devices of pods that nobody will DEL: containerd never calls GC."""

from cni_ub.agent.service import Loop
from cni_ub.host import Host
from cni_ub.reconcile import repair
from ubhost.errors import HostFault

FOR_EVER = 1e9  # seconds


class Reconciler:
    """Repairs at start, which is after a reboot or a crash, and then every ``period_s`` seconds; 0 is only at start."""

    name = "reconciler"

    def __init__(self, host: Host, period_s: float) -> None:
        self._host = host
        self._loop = Loop(self.name, self._turn, period_s or FOR_EVER)

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()

    def ready(self) -> str | None:
        """It is no condition for serving calls: ADD heals what it meets."""
        return None

    def _turn(self) -> None:
        failed = [finding for finding in repair(self._host) if finding.problems]
        if failed:
            problems = "; ".join(f"{finding.record.device}: {', '.join(finding.problems)}" for finding in failed)
            raise HostFault(f"not released: {problems}")

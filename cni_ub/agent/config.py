"""The agent's configuration file. Every key is optional; see ``settings`` for those about kubelet and the CNI files."""

from dataclasses import dataclass

from cni_ub.agent.settings import Settings

LEVELS = ("debug", "info", "warning", "error")
PROVIDERS = ("auto", "ubcore", "rdma", "sim")


@dataclass(frozen=True, slots=True)
class AgentConfig(Settings):
    """``workers`` calls are answered at a time; ``reconcile_period`` is in seconds, 0 is never."""

    workers: int = 16
    reconcile_period: float = 30.0
    log_level: str = "info"
    provider: str = "auto"

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if not 1 <= self.workers <= 256:
            raise ValueError(f"workers {self.workers} is not between 1 and 256")
        if not 0 <= self.reconcile_period <= 86400:
            raise ValueError(f"reconcile_period {self.reconcile_period} is not between 0 and 86400 seconds")
        if self.log_level not in LEVELS:
            raise ValueError(f"log_level {self.log_level!r} is not one of {', '.join(LEVELS)}")
        if self.provider not in PROVIDERS:
            raise ValueError(f"provider {self.provider!r} is not one of {', '.join(PROVIDERS)}")

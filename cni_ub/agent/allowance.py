"""How much of a CPU a task may take: a share of the time that passes, of which a rest saves some. Pure."""

from dataclasses import dataclass


@dataclass(slots=True)
class Allowance:
    """Times are seconds; ``share`` is CPU time per time, ``most`` is what can be saved, and what there is at first.

    A task is not cut short: what it took beyond the allowance is waited for before the next one.
    """

    share: float
    most: float
    at: float
    left: float = 0.0

    def __post_init__(self) -> None:
        self.left = self.most

    def is_there(self, now: float) -> bool:
        """Whether another task may begin ``now``."""
        self.left = min(self.most, self.left + (now - self.at) * self.share)
        self.at = now
        return self.left > 0

    def spend(self, cpu_s: float) -> None:
        self.left -= cpu_s

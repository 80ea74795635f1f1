"""Memory of offline work: who gives some back when the node runs short, and who used too much of what is borrowed.

Short of memory, the kernel is asked to reclaim a twentieth of what each offline pod has in a period, and no more than
is missing. If that was not enough for three periods, or cannot be asked, their ``memory.high`` is lowered, by a
twentieth as well: slowly, as a limit far below what is in use makes a task crawl for half a minute. Never to 0, which
stops it for good, and never ``memory.max``, which kills. With twice the reserve free for a while, it is raised by a
tenth a period, and lifted.

The kernel has no limit of a cgroup for one NUMA node. A pod over its budget of borrowed memory, or of a namespace over
its, is kept off the borrowed nodes, which moves its pages home, until it is a fifth below. If it is over the limit
nevertheless, as there is no room at home, it gets no further container; and it is ended, if that is allowed.

Pure. Source: reference/nri.md sections 3.1 and 4.5, rubik's dynMemory in 2.3.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from nri_qos.settings import PAGE

RECLAIM = 0.05  # of what a pod has, in a period
RECLAIM_PERIODS = 3  # in which that alone is tried
LOWER = 0.95  # of what a pod has, in a period
RAISE = 1.1  # of its limit, in a period
CALM_PERIODS = 12  # with twice the reserve, before raising
LIFTED = 2.0  # a limit of so many times what is in use limits nothing
RELIEF = 0.8  # of a budget: below, borrowed memory is allowed again


@dataclass(frozen=True, slots=True)
class State:
    high: Mapping[str, float] = field(default_factory=dict)  # folder of a pod -> bytes
    calm: int = 0
    short: int = 0  # periods in a row
    reclaim: Mapping[str, int] = field(default_factory=dict)  # folder of a pod -> bytes to ask for now


def decide(
    available: int, total: int, used: Mapping[str, int], state: State, reserve: float, *, can_reclaim: bool = False
) -> State:
    """Return the new limits of the offline pods, whose memory in bytes is ``used``.

    Args:
        available: bytes that are free or that the kernel would free.
        total: bytes of this server; what is borrowed does not count.
        used: by folder of the pod.
        state: of the last period.
        reserve: share of ``total`` that shall stay available.
        can_reclaim: whether the kernel reclaims when asked.
    """
    kept = {pod: high for pod, high in state.high.items() if pod in used}
    if available < reserve * total:
        short, asked = state.short + 1, _reclaim(used, reserve * total - available) if can_reclaim else {}
        if asked and short <= RECLAIM_PERIODS:
            return State(kept, 0, short, asked)
        lowered = {pod: LOWER * min(size, kept.get(pod, size)) for pod, size in used.items() if size > 0}
        floors = {pod: LOWER * used[pod] for pod in lowered}
        return State({pod: max(high, floors[pod]) for pod, high in lowered.items()}, 0, short, asked)
    if available < 2 * reserve * total:
        return State(kept, 0)
    calm = state.calm + 1
    if calm < CALM_PERIODS:
        return State(kept, calm)
    raised = {pod: RAISE * high for pod, high in kept.items()}
    return State({pod: high for pod, high in raised.items() if high < LIFTED * used[pod]}, calm)


def victim(used: Mapping[str, int], offline: Collection[str]) -> str | None:
    """Return the folder of the offline pod that has most, ``None`` if none has any."""
    return max((pod for pod in offline if used.get(pod, 0) > 0), key=lambda pod: (used[pod], pod), default=None)


def _reclaim(used: Mapping[str, int], missing: float) -> dict[str, int]:
    """Return the bytes to ask of each pod, in whole pages; who has next to nothing is left alone."""
    shares = {pod: int(min(RECLAIM * size, missing)) // PAGE * PAGE for pod, size in used.items()}
    return {pod: share for pod, share in shares.items() if share}


Owner = tuple[str, str]
"""Namespace and key of a pod."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes of borrowed memory; ``None`` is no limit."""

    pod: int | None = None
    namespace: int | None = None


def lower(one: Budget, other: Budget) -> Budget:
    """Return the tighter of two budgets."""

    def least(a: int | None, b: int | None) -> int | None:
        return min((limit for limit in (a, b) if limit is not None), default=None)

    return Budget(least(one.pod, other.pod), least(one.namespace, other.namespace))


@dataclass(frozen=True, slots=True)
class Over:
    """Who has more borrowed memory than a budget allows."""

    pods: frozenset[Owner] = frozenset()
    namespaces: frozenset[str] = frozenset()

    def has(self, owner: Owner) -> bool:
        """Whether a pod is over the budget by itself or with its namespace."""
        return owner in self.pods or owner[0] in self.namespaces


NOBODY = Over()


def over_budget(borrowed: Mapping[Owner, int], before: Over, budget: Budget) -> Over:
    """Return who is over ``budget``.

    Args:
        borrowed: bytes on borrowed nodes, of the offline pods.
        before: the last answer; who is in it must fall well below the budget.
        budget: what is allowed.
    """
    totals: Counter[str] = Counter()
    for (namespace, _), size in borrowed.items():
        totals[namespace] += size
    return Over(
        frozenset(owner for owner, size in borrowed.items() if _exceeds(size, budget.pod, owner in before.pods)),
        frozenset(name for name, size in totals.items() if _exceeds(size, budget.namespace, name in before.namespaces)),
    )


def _exceeds(size: int, limit: int | None, was_over: bool) -> bool:
    return limit is not None and size > (RELIEF * limit if was_over else limit)

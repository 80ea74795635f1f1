"""Which version of a model a node puts in force, when each node has a copy of its own. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class SwitchPolicy(Enum):
    """When a node goes over to a version that is wanted."""

    ALL_READY = "all-ready"  # when every node that uses the model has all of it
    PER_NODE = "per-node"  # when this node has all of it


@dataclass(frozen=True, slots=True)
class Standing:
    """What one node has: the versions that are ``whole`` there, and the one in force."""

    node: str
    whole: frozenset[str] = frozenset()
    current: str | None = None


def due(wanted: Sequence[str], me: Standing, others: Sequence[Standing], policy: SwitchPolicy) -> str | None:
    """Return the version that is to be in force here; ``None`` if there is none yet.

    ``wanted`` has the newest wish first, the earlier ones after it; ``others`` are the other nodes that use the model.
    A node that comes late takes what the others have in force, and one of them having gone over decides for all.
    """
    if not wanted:
        return me.current
    newest = wanted[0]
    in_force = {each.current for each in (me, *others)}
    is_decided = policy is SwitchPolicy.PER_NODE or newest in in_force or not missing(newest, (me, *others))
    target = newest if is_decided else next((id_ for id_ in wanted if id_ in in_force), None)
    return target if target in me.whole else me.current


def missing(version: str, everybody: Sequence[Standing]) -> tuple[str, ...]:
    """Return the nodes that do not have all of ``version`` yet."""
    return tuple(each.node for each in everybody if version not in each.whole)

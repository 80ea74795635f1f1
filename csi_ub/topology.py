"""Where a volume can be used, in the labels that the scheduler of Kubernetes compares.

Two segments: the node, and the super-node, whose nodes an engine with a network reaches. A value must be a label of
at most 63 characters, so a node id that is none is replaced by a hash of it.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping

NODE = "topology.unifiedbus.com/node"
SUPERNODE = "topology.unifiedbus.com/supernode"
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def segments(node: str, supernode: str) -> dict[str, str]:
    """Return the place of a node."""
    return {**of_node(node), SUPERNODE: _value(supernode)}


def of_node(node: str) -> dict[str, str]:
    """Return the segment that one node alone has."""
    return {NODE: _value(node)}


def is_within(place: Mapping[str, str], wanted: Iterable[Mapping[str, str]]) -> bool:
    """Whether ``place`` is one of ``wanted``; where nothing is wanted, every place is."""
    choices = [dict(choice) for choice in wanted]
    return not choices or any(choice.items() <= dict(place).items() for choice in choices)


def _value(text: str) -> str:
    return text if _LABEL.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()[:32]

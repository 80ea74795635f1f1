"""Who may touch which bytes of a shared region: OBMM's rule for cacheable memory, and its lifecycle. Pure.

A region is exported by one node and imported by others; each opens it cacheable (CC) or not (NC), never both at once.
Cacheable memory is owned in ranges of pages: many nodes may read a range, or exactly one node may write it. The driver
itself does not enforce that between hosts (reference/ub.md 6.2): the stand-in does, so that a program which breaks
the rule is told so instead of losing data one day.

Source: reference/ub.md sections 6.1 and 6.2 (obmm documentation, obmm_set_ownership).
"""

import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType

from ubsim.ubcore import Refused

PAGE = 4096


class Access(IntEnum):
    """Ordered: whoever may write may read."""

    NONE = 0
    READ = 1
    WRITE = 2


@dataclass(frozen=True, slots=True)
class Opener:
    """One open file of one process. ``grants`` has the access to each page that it may touch."""

    node: str
    is_cached: bool
    grants: Mapping[int, Access] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Effect:
    """What the caches of ``node`` must do to one page: write it back to memory, or fetch it afresh."""

    node: str
    page: int
    is_write_back: bool


@dataclass(frozen=True, slots=True)
class SharedRegion:
    """One region: ``members`` are the nodes that export or import it."""

    size: int  # bytes
    members: frozenset[str]
    openers: Mapping[int, Opener] = field(default_factory=lambda: MappingProxyType({}))

    def open(self, key: int, node: str, *, cached: bool) -> "SharedRegion":
        """A process on ``node`` opens the region; with ``O_SYNC`` that is not cached."""
        if node not in self.members:
            raise Refused(errno.ENOENT, f"{node} has not imported the region")
        if any(opener.is_cached is not cached for opener in self.openers.values()):
            raise Refused(errno.EPERM, "a region is cacheable or not, never both at once")
        return replace(self, openers={**self.openers, key: Opener(node, cached)})

    def close(self, key: int) -> tuple["SharedRegion", tuple[Effect, ...]]:
        """The file is closed, or its process died: what it wrote is written back."""
        released, effects = (
            self.set_access(key, 0, self.size, Access.NONE) if self.openers[key].is_cached else (self, ())
        )
        return replace(released, openers={k: v for k, v in released.openers.items() if k != key}), effects

    def set_access(self, key: int, start: int, end: int, access: Access) -> tuple["SharedRegion", tuple[Effect, ...]]:
        """obmm_set_ownership: the bytes from ``start`` up to ``end`` get ``access`` for this opener.

        Returns the next state and what the caches do: the last writer of a page that leaves writes it back; whoever
        comes to a page that nobody of its node had fetches it.
        """
        opener = self.openers[key]
        if not opener.is_cached:
            raise Refused(errno.EPERM, "ownership is for cacheable mappings only")
        if start % PAGE or end % PAGE or not 0 <= start < end <= self.size:
            raise Refused(errno.EINVAL, f"{start} to {end} are not whole pages within {self.size} bytes")
        pages = range(start // PAGE, end // PAGE)
        for page in pages:
            self._refuse_conflict(opener.node, page, access)
        grants = {page: held for page, held in opener.grants.items() if page not in pages}
        if access is not Access.NONE:
            grants.update(dict.fromkeys(pages, access))
        after = replace(self, openers={**self.openers, key: replace(opener, grants=grants)})
        touched = pages if access is not Access.NONE else [page for page in pages if page in opener.grants]
        return after, tuple(_effects(self, after, opener.node, touched))

    def held(self, node: str, page: int) -> Access:
        """Return the most that any opener on ``node`` may do to ``page``."""
        grants = (o.grants.get(page, Access.NONE) for o in self.openers.values() if o.node == node)
        return max(grants, default=Access.NONE)

    def refuse_release(self, node: str) -> None:
        """Raise if ``node`` cannot unimport, or unexport, because it still has the region open."""
        if any(opener.node == node for opener in self.openers.values()):
            raise Refused(errno.EBUSY, f"the region is open on {node}")

    def _refuse_conflict(self, node: str, page: int, access: Access) -> None:
        if access is Access.NONE:
            return
        for other in self.members - {node}:
            held = self.held(other, page)
            if held is Access.WRITE or (access is Access.WRITE and held is Access.READ):
                verb = "written" if held is Access.WRITE else "read"
                raise Refused(errno.EPERM, f"page {page} is being {verb} by {other}")


def _effects(
    before: SharedRegion, after: SharedRegion, node: str, pages: Iterator[int] | range | list[int]
) -> Iterator[Effect]:
    for page in pages:
        was, now = before.held(node, page), after.held(node, page)
        if was is Access.WRITE and now is not Access.WRITE:
            yield Effect(node, page, is_write_back=True)
        elif was is Access.NONE and now is not Access.NONE:
            yield Effect(node, page, is_write_back=False)

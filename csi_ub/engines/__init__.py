"""How the bytes of a volume reach a node: one module for each engine, behind one interface (``base.Engine``)."""

from collections.abc import Mapping
from dataclasses import dataclass

from csi_ub.engines.base import Engine
from csi_ub.model import Consistency
from csi_ub.parameters import MEMORY
from ubhost.errors import InvalidRequest, Unsupported

# Which engines keep which promise, the best first. What is strong is eventual too: with no peers a bind mount does.
_KEEPERS = {
    Consistency.STRONG: ("glusterfs", "bind"),
    Consistency.EVENTUAL: ("syncthing", "bind"),
    Consistency.CLOSE_TO_OPEN: ("nfs",),
}


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of this node, by name. ``has_peers``: there are nodes on other machines."""

    known: Mapping[str, Engine]
    has_peers: bool = False

    def named(self, name: str) -> Engine:
        """Return one engine.

        Raises:
            InvalidRequest: there is none of this name.
        """
        engine = self.known.get(name)
        if engine is None:
            raise InvalidRequest(f"engine {name!r} is none of {', '.join(self.known)}")
        return engine

    def choose(self, wanted: str, consistency: Consistency, replicas: int = 1, *, is_memory: bool = False) -> Engine:
        """Return the engine for a new volume: the wanted one, or the best that works here.

        Raises:
            InvalidRequest: there is none of this name, or it does not keep that promise.
            Unsupported: this node lacks what it needs.
        """
        names = MEMORY if is_memory else _KEEPERS[consistency]  # memory keeps both promises, each in its way
        if wanted:
            engine = self.named(wanted)
            if wanted not in names:
                raise InvalidRequest(f"engine {wanted!r} is not for consistency {consistency.value}")
            engine.check(replicas)
            return engine
        if len(names) == 1 or (consistency is Consistency.EVENTUAL and self.has_peers and not is_memory):
            self.known[names[0]].check()
            return self.known[names[0]]
        lacks = []
        for engine in (self.known[name] for name in names if name in self.known):
            try:
                engine.check(replicas)
            except Unsupported as error:
                lacks.append(str(error))
                continue
            return engine
        what = "type memory" if is_memory else f"consistency {consistency.value}"
        raise Unsupported(f"this node has no engine for {what}: {'; '.join(lacks)}")

"""How the bytes of a volume reach a node: one module for each engine, behind one interface (``base.Engine``)."""

from collections.abc import Mapping
from dataclasses import dataclass

from csi_ub.engines.base import Engine
from ubhost.errors import InvalidRequest, Unsupported


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of this node, by name; the first one that works here is the default, the last always works."""

    known: Mapping[str, Engine]

    def named(self, name: str) -> Engine:
        """Return one engine.

        Raises:
            InvalidRequest: there is none of this name.
        """
        engine = self.known.get(name)
        if engine is None:
            raise InvalidRequest(f"engine {name!r} is none of {', '.join(self.known)}")
        return engine

    def choose(self, wanted: str) -> Engine:
        """Return the engine for a new volume: the wanted one, or the best that works here.

        Raises:
            InvalidRequest: there is none of this name.
            Unsupported: this node lacks what the wanted one needs.
        """
        if wanted:
            engine = self.named(wanted)
            engine.check()
            return engine
        for engine in self.known.values():
            try:
                engine.check()
            except Unsupported:
                continue
            return engine
        raise Unsupported("this node has no engine")

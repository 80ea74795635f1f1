"""Who uses a volume, where only its owner can note it: the drivers of the other nodes ask the owner's to."""

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from csi_ub.engines.base import Reach
from csi_ub.model import Attachment
from csi_ub.peers.channel import Peers, Verb
from csi_ub.pool import Pool
from ubhost.errors import InvalidRequest, NotFound


@dataclass(frozen=True, slots=True)
class Noted:
    """The users of the volumes of ``engine``; ``pools`` are those of this node, for the calls of others."""

    engine: str
    pools: tuple[Pool, ...]
    peers: Peers

    def verbs(self) -> dict[str, Verb]:
        return {f"{self.engine}.attach": self._attach, f"{self.engine}.detach": self._detach}

    def attach(self, reach: Reach, attachment: Attachment) -> None:
        """Let the owner note that a node uses the volume; see ``Engine.attach``."""
        noted = msgspec.to_builtins(attachment)
        self.peers.ask(reach.owner, f"{self.engine}.attach", {"volume": reach.volume, "attachment": noted})

    def detach(self, reach: Reach, node: str) -> None:
        """Let the owner forget that a node uses the volume.

        Raises:
            NotFound: there is no such volume.
        """
        self.peers.ask(reach.owner, f"{self.engine}.detach", {"volume": reach.volume, "node": node})

    def _attach(self, content: dict[str, Any]) -> dict[str, Any]:
        try:
            attachment = msgspec.convert(content.get("attachment"), Attachment)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"a node that uses a volume is told in a way that we do not know: {error}") from error
        volume_id, pool = self._own(content)
        with pool.share(volume_id) as share:
            pool.attach(replace(share, is_one_machine=False), attachment, self.engine)
        return {}

    def _detach(self, content: dict[str, Any]) -> dict[str, Any]:
        volume_id, pool = self._own(content)
        with pool.share(volume_id) as share:
            share.detach(str(content.get("node")))
        return {}

    def _own(self, content: dict[str, Any]) -> tuple[str, Pool]:
        volume_id = str(content.get("volume"))
        for pool in self.pools:
            if pool.volumes.find(volume_id):
                return volume_id, pool
        raise NotFound(f"volume {volume_id!r} does not exist on node {self.peers.node}")

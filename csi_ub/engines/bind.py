"""The engine for nodes that see the pool's own directory: a bind mount of the volume's folder.

Those are the owner itself, and simulated nodes on the owner's kernel, which find the pool directory by the path in
the volume context. All of them work on one file system through one kernel, so every write is seen by all at once:
strong by construction. It cannot reach another machine.
"""

import os
from collections.abc import Mapping
from contextlib import suppress

from csi_ub.engines.base import Engine, Reach, volume_context
from csi_ub.model import Attachment, Volume
from csi_ub.pool import Pool
from csi_ub.pools.base import Usage
from ubhost.errors import NotFound, Unsupported


class BindEngine(Engine):
    name = "bind"
    spans_machines = False

    def fence(self, volume: Volume, pool: Pool) -> None:
        if volume.fenced:
            raise Unsupported(
                f"volume {volume.id} is a bind mount, which can only be taken from node {volume.fenced[-1]} by itself"
            )

    def context(self, volume: Volume, pool: Pool) -> Mapping[str, str]:
        return {**volume_context(self.name, volume), "path": str(pool.path)}

    def stage(self, reach: Reach) -> int:
        with _pool(reach).share(reach.volume) as share:
            return share.open_data()

    def attach(self, reach: Reach, attachment: Attachment) -> None:
        with _pool(reach).share(reach.volume) as share:
            _pool(reach).attach(share, attachment, self.name)

    def verify(self, reach: Reach) -> None:
        _record(reach)
        os.close(self.stage(reach))

    def usage(self, reach: Reach) -> Usage | None:
        return _pool(reach).usage(_record(reach))

    def detach(self, reach: Reach, node: str) -> None:
        with suppress(NotFound), _pool(reach).share(reach.volume) as share:
            share.detach(node)


def _pool(reach: Reach) -> Pool:
    if reach.pool is None:
        raise NotFound(f"the pool of volume {reach.volume} is not on this machine")
    return reach.pool


def _record(reach: Reach) -> Volume:
    volume = _pool(reach).volumes.find(reach.volume)
    if volume is None:
        raise NotFound(f"volume {reach.volume} does not exist")
    return volume

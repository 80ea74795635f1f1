"""The engine for nodes that see the pool's own directory: a bind mount of the volume's folder.

Those are the owner itself, and simulated nodes on the owner's kernel, which find the pool directory by the path in
the volume context. All of them work on one file system through one kernel, so every write is seen by all at once:
strong by construction. It cannot reach another machine.
"""

import os
from collections.abc import Mapping
from contextlib import suppress

from csi_ub.model import Attachment, Volume
from csi_ub.pool import Pool
from ubhost.errors import NotFound

NAME = "bind"


class BindEngine:
    def prepare(self, volume: Volume, pool: Pool) -> Mapping[str, str]:
        return {"engine": NAME, "owner": volume.owner, "pool": pool.name, "path": str(pool.path)}

    def attach(self, volume: Volume, pool: Pool, attachment: Attachment) -> None:
        with pool.share(volume.id) as share:
            share.attach(attachment)

    def stage(self, volume: Volume, pool: Pool) -> int:
        with pool.share(volume.id) as share:
            return share.open_data()

    def verify(self, volume: Volume, pool: Pool) -> None:
        with pool.share(volume.id) as share:
            os.close(share.open_data())

    def detach(self, volume_id: str, pool: Pool, node: str) -> None:
        with suppress(NotFound), pool.share(volume_id) as share:
            share.detach(node)

"""Sees that the volumes of this node stay reachable: data daemons that died are started again."""

import logging
import threading
import time

from csi_ub.model import Volume
from csi_ub.volumes import Volumes
from ubhost.errors import Busy, UbError

_EVERY_S = 5.0

log = logging.getLogger(__name__)


def serve(volumes: Volumes) -> None:
    """Make the volumes of this node reachable again, after a reboot; then see that they stay so."""
    for engine in volumes.engines.known.values():
        try:
            engine.resume()
        except UbError as error:
            log.warning("not resumed", extra={"engine": engine.name, "error": str(error)})
    _look_after(volumes)
    if volumes.engines.has_peers:
        threading.Thread(target=_look_after_for_ever, args=(volumes,), name="supervisor", daemon=True).start()


def _look_after_for_ever(volumes: Volumes) -> None:
    while True:
        time.sleep(_EVERY_S)
        _look_after(volumes)


def _look_after(volumes: Volumes) -> None:
    """Start the data daemons that died. A volume that a call is working on is left to that call."""
    for pool in volumes.pools:
        for volume in pool.volumes.all():
            try:
                with pool.volumes.lock(volume.id, wait_s=0):
                    if pool.volumes.find(volume.id) == volume:
                        volumes.engines.named(volume.engine).look_after(volume, pool)
            except Busy:
                continue
            except UbError as error:
                log.warning("not reachable", extra={"volume_id": volume.id, "error": str(error)})

    def find(volume_id: str) -> Volume | None:
        found = volumes.own(volume_id)
        return found[0] if found else None

    for engine in volumes.engines.known.values():
        engine.tidy(find)

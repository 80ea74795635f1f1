"""Sees that the volumes of this node stay reachable: data daemons that died are started again."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from csi_ub.model import Volume
from csi_ub.pool import Pool
from csi_ub.volumes import Volumes
from ubhost.errors import Busy, UbError

_EVERY_S = 5.0

log = logging.getLogger(__name__)


def serve(volumes: Volumes) -> None:
    """Make the volumes of this node reachable again, after a reboot; then see that they stay so.

    What goes wrong is logged, and tried again in the next round: it neither keeps the driver from starting nor ends
    the rounds.
    """
    for engine in volumes.engines.known.values():
        with _going_on("not resumed", engine=engine.name):
            engine.resume()
    look_after(volumes)
    if volumes.engines.has_peers:
        threading.Thread(target=_look_after_for_ever, args=(volumes,), name="supervisor", daemon=True).start()


def look_after(volumes: Volumes) -> None:
    """Start the data daemons that died. A volume that a call is working on is left to that call."""
    for pool in volumes.pools:
        with _going_on("pool not looked after", pool=pool.name):
            for volume in pool.volumes.all():
                with _going_on("not reachable", volume_id=volume.id):
                    _look_after_one(volumes, volume, pool)

    def find(volume_id: str) -> Volume | None:
        found = volumes.own(volume_id)
        return found[0] if found else None

    for engine in volumes.engines.known.values():
        with _going_on("not tidied", engine=engine.name):
            engine.tidy(find)


def _look_after_for_ever(volumes: Volumes) -> None:
    while True:
        time.sleep(_EVERY_S)
        look_after(volumes)


def _look_after_one(volumes: Volumes, volume: Volume, pool: Pool) -> None:
    engine = volumes.engines.named(volume.engine)
    with pool.volumes.lock(volume.id, wait_s=0):
        if pool.volumes.find(volume.id) != volume:
            return
        if engine.is_prepared(volume):
            engine.look_after(volume, pool)
            return
    engine.prepare(volume, pool)  # a driver was killed between its record and its daemons


@contextmanager
def _going_on(what: str, **about: str) -> Iterator[None]:
    """Log what the body raises and go on: one volume in trouble takes no other with it."""
    try:
        yield
    except Busy as error:
        log.debug(what, extra={**about, "error": str(error)})
    except UbError as error:
        log.warning(what, extra={**about, "error": str(error)})
    except Exception:  # a bug of ours in one engine must not leave the volumes of all others without daemons
        log.exception(what, extra=about)

"""What UBSE said when it gave a device out, kept until the device is freed.

One program allocates, another must know what was allocated: kubelet's request reaches the agent, the CNI call may
reach the plugin without it. The file lies in ``<root>/run/ub-node`` and so dies at a reboot, as kernel device names do.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ubhost import statefile
from ubhost.errors import HostFault, InvalidRequest
from ubhost.model import Eid
from ubhost.ubse.bodies import UrmaPaths

VERSION = 1


class Allocations:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "urma.json"

    def read(self) -> Mapping[str, UrmaPaths]:
        """Return what is known; nothing where the file is damaged, for UBSE can be asked again."""
        try:
            content = statefile.read(self._path, VERSION) or {}
            return {device: _decode(paths) for device, paths in content.get("devices", {}).items()}
        except (statefile.Damaged, AttributeError, KeyError, TypeError, ValueError, InvalidRequest):
            return {}

    def remember(self, device_id: str, paths: UrmaPaths) -> None:
        with self._locked():
            self._write({**self.read(), device_id: paths})

    def forget(self, device_id: str) -> None:
        with self._locked():
            kept = dict(self.read())
            if kept.pop(device_id, None) is not None:
                self._write(kept)

    def _write(self, devices: Mapping[str, UrmaPaths]) -> None:
        statefile.write(self._path, VERSION, {"devices": {name: _encode(paths) for name, paths in devices.items()}})

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other programs and threads from changing the file between our read and our write."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise HostFault(f"cannot lock {self._path}: {error.strerror or error}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _encode(paths: UrmaPaths) -> dict[str, object]:
    return {"bonding": paths.bonding, "entities": list(paths.entities), "bonding_eid": str(paths.bonding_eid)}


def _decode(content: Mapping[str, Any]) -> UrmaPaths:
    first, second = content["entities"]
    return UrmaPaths(str(content["bonding"]), (str(first), str(second)), Eid.parse(str(content["bonding_eid"])))

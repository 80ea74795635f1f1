"""What UBSE said when it gave a device out, kept until the device is freed.

One program allocates, another must know what was allocated: kubelet's request reaches the agent, the CNI call may
reach the plugin without it. The file lies in ``<root>/run/ub-node`` and so dies at a reboot, as kernel device names do.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ubhost import statefile
from ubhost.errors import InvalidRequest
from ubhost.filelock import locked
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

    def _locked(self) -> AbstractContextManager[None]:
        """Keep other programs and threads from changing the file between our read and our write."""
        return locked(self._path.with_suffix(".lock"))


def _encode(paths: UrmaPaths) -> dict[str, object]:
    return {"bonding": paths.bonding, "entities": list(paths.entities), "bonding_eid": str(paths.bonding_eid)}


def _decode(content: Mapping[str, Any]) -> UrmaPaths:
    first, second = content["entities"]
    return UrmaPaths(str(content["bonding"]), (str(first), str(second)), Eid.parse(str(content["bonding_eid"])))

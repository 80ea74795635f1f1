"""What Syncthing is told about a volume, and what it says about one. Pure."""

from collections.abc import Iterable
from typing import Any

# Pods see ``data`` only; ``nodes`` and ``beats`` travel with it, an engine's own files do not. Of a model the versions
# travel, but not which one is in force: each node puts a version in force when it has all of it.
IGNORE = "!/data\n!/nodes\n!/beats\n*\n"
IGNORE_MODEL = "!/data/versions\n!/manifests\n!/history.json\n!/nodes\n!/beats\n*\n"


def folder(volume_id: str, path: str, devices: Iterable[str], *, max_staleness_s: float) -> dict[str, Any]:
    """Return the configuration of a volume's folder: found by inotify, and by a scan for what inotify lost."""
    return {
        "id": volume_id,
        "label": volume_id,
        "path": path,
        "type": "sendreceive",
        "devices": [{"deviceID": device} for device in sorted(devices)],
        "fsWatcherEnabled": True,
        "fsWatcherDelayS": watcher_delay(max_staleness_s),
        "rescanIntervalS": 60,
        "pullerPauseS": 1,  # a file that changed while it was fetched is asked for again at once, not in a minute
        "copyOwnershipFromParent": True,
        "maxConflicts": -1,  # keep them all: somebody's data is in there
        "minDiskFree": {"value": 0, "unit": "%"},
    }


def device(device_id: str, node: str, host: str, port: int) -> dict[str, Any]:
    """Return the configuration of a peer: one fixed address, nothing taken from it but what we ask for."""
    return {
        "deviceID": device_id,
        "name": node,
        "addresses": [f"tcp://{host}:{port}"],
        "introducer": False,
        "autoAcceptFolders": False,
    }


def watcher_delay(max_staleness_s: float) -> int:
    """Return the seconds that changes are collected before they are sent."""
    return max(1, int(max_staleness_s / 5))

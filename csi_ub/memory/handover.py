"""What nri-qos must let a pod open: one record for each pod and memory volume, read by ``nri_qos.grants``.

    <root>/run/ub-node/volumes/<pod uid>@<volume>.json
    {"pod_uid", "volume", "devices": [{"node": "obmm_shmdev3", "permissions": "rw"}], "mounts": [], "env": {}}

It is there before NodePublishVolume returns, so before the pod's first container is made, and goes with
NodeUnpublishVolume. ``node`` is a name below ``<root>/dev``.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ubhost import statefile

_VERSION = 1
_UID = re.compile(r"[0-9A-Za-z-]{1,64}")


def pod_of(context: Mapping[str, str], target: str) -> str | None:
    """Return the uid of the pod that a volume is published for: kubelet says it, and its path has it."""
    parts = Path(target).parts
    named = context.get("csi.storage.k8s.io/pod.uid") or (
        parts[parts.index("pods") + 1] if "pods" in parts[:-1] else ""
    )
    return named if _UID.fullmatch(named) else None


def write(folder: Path, pod: str, volume: str, devices: Iterable[str], *, is_read_only: bool) -> None:
    """Tell that pod ``pod`` may open the nodes ``devices``."""
    permissions = "r" if is_read_only else "rw"
    granted = [{"node": node, "permissions": permissions} for node in devices]
    content = {"pod_uid": pod, "volume": volume, "devices": granted, "mounts": [], "env": {}}
    statefile.write(_file(folder, pod, volume), _VERSION, content, durable=False)  # the memory dies with the node, too


def remove(folder: Path, pod: str, volume: str) -> None:
    _file(folder, pod, volume).unlink(missing_ok=True)


def _file(folder: Path, pod: str, volume: str) -> Path:
    return folder / f"{pod}@{volume}.json"

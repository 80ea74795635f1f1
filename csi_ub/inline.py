"""Volumes that pods bring in their manifests (CSI ephemeral inline volumes): kubelet stages none of them, so we do.

Each is staged once in a folder of the driver's own, ``<run>/inline/<volume id>``, and published from there.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from csi_ub.model import Capability
from csi_ub.nodevolumes import NodeVolumes

EPHEMERAL = "csi.storage.k8s.io/ephemeral"  # kubelet says so in the context of a volume that a pod brings itself


def show(
    node: NodeVolumes,
    volume_id: str,
    target: str,
    capability: Capability,
    context: Mapping[str, str],
    *,
    readonly: bool,
) -> None:
    """Stage a volume, if it is not, and publish it at ``target``; see ``NodeVolumes``."""
    staging = _staging(node, volume_id)
    staging.mkdir(parents=True, exist_ok=True, mode=0o700)
    node.stage(volume_id, str(staging), capability, context)
    node.publish(volume_id, str(staging), target, capability, context, readonly=readonly)


def let_go(node: NodeVolumes, volume_id: str) -> None:
    """Unstage a volume that is published to no pod any more; nothing happens if it is not staged."""
    staging = _staging(node, volume_id)
    node.unstage(volume_id, str(staging))
    with suppress(OSError):
        staging.rmdir()


def _staging(node: NodeVolumes, volume_id: str) -> Path:
    return node.inline / volume_id

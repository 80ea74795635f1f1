"""Take away what the agent published on this node: for uninstalling, when no agent will come back to do it."""

from pathlib import Path

from cni_ub.agent import watchedfolder
from cni_ub.agent.cdi import CdiFile
from cni_ub.agent.conf import ConfGenerator
from cni_ub.agent.deviceinfo import DeviceInfoFiles
from cni_ub.agent.nodefeatures import FeatureFile
from cni_ub.agent.settings import Settings
from ubhost.errors import NotFound
from ubhost.roots import Roots


def clean(settings: Settings, roots: Roots) -> list[Path]:
    """Remove every file that an agent with these settings may have left; return them. Nothing there is fine.

    The CNI configuration goes first: the runtime must not call a plugin that is about to be removed.

    Raises:
        HostFault: one of them cannot be removed.
    """
    try:
        removed = ConfGenerator(settings.conf, roots).remove_all()
    except NotFound:
        removed = []
    for path in (CdiFile(roots).path, FeatureFile(roots).path):
        if watchedfolder.remove(path):
            removed.append(path)
    return removed + DeviceInfoFiles(roots, [resource.name for resource in settings.resources]).remove()

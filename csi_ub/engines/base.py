"""The interface that every engine has.

A volume has one authority: the pool that holds its record. An engine brings its bytes to a node. The life of a
volume: ``prepare`` once at the authority; then on each node ``attach`` (the authority agrees), ``stage`` (the bytes
are here), ``verify`` and ``stats`` as often as somebody asks, ``detach``. ``switch`` changes how, for engines that
can. What an engine does not have it does not define; callers ask for the protocol they need.
"""

from collections.abc import Mapping
from typing import Protocol

from csi_ub.model import Attachment, Volume
from csi_ub.pool import Pool


class Engine(Protocol):
    """Every method may raise ``HostFault``."""

    def prepare(self, volume: Volume, pool: Pool) -> Mapping[str, str]:
        """Return the volume context: what another node must know to reach the volume, no secrets."""

    def attach(self, volume: Volume, pool: Pool, attachment: Attachment) -> None:
        """Let the authority note that a node uses the volume.

        Raises:
            InUse: another node has it, and one of the two wants it for itself.
        """

    def stage(self, volume: Volume, pool: Pool) -> int:
        """Bring the volume here; return a descriptor of its top folder, good for binding."""

    def verify(self, volume: Volume, pool: Pool) -> None:
        """Raise what is wrong with the volume as seen from here; touch no data that could hang."""

    def detach(self, volume_id: str, pool: Pool, node: str) -> None:
        """Let the authority forget the node; it may be forgotten already."""

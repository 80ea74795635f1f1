"""The volumes of this node as the Controller service sees them: what its parts have in common."""

from ubproto.csi.v1 import csi_pb2

from csi_ub import answers, parameters, topology
from csi_ub.engines.base import Engine
from csi_ub.model import Capability, Spec, Volume, VolumeType
from csi_ub.pool import Pool
from csi_ub.uses import unsupported
from csi_ub.volumes import Volumes
from ubhost import statefile
from ubhost.errors import NotFound


class OwnVolumes:
    """``has_fencing``: the cluster says which nodes may use a volume before they do (``fencing: true``).

    ``is_apart``: it has no volumes of its own to list, and only hands calls to their owners.
    """

    def __init__(self, volumes: Volumes, *, has_fencing: bool = False, is_apart: bool = False) -> None:
        self.volumes = volumes
        self.has_fencing = has_fencing
        self.is_apart = is_apart

    def own(self, volume_id: str) -> tuple[Volume, Pool]:
        found = self.volumes.own(volume_id)
        if found is None:
            raise NotFound(f"volume {volume_id!r} does not exist on node {self.volumes.node}")
        return found

    def to_copy(self, volume_id: str) -> tuple[Volume, Pool]:
        """Return a volume that a snapshot is to be taken of, whose newest bytes are here.

        Raises:
            NotFound: it does not exist.
            Unsupported: it belongs to another node, or is of a kind that has no copies.
            Unreachable: its newest bytes may be elsewhere.
        """
        found = self.volumes.own(volume_id)
        if found is None:
            self.volumes.refuse_foreign(volume_id)
            raise NotFound(f"volume {volume_id!r} does not exist")
        self.engine(found[0]).check_current(*found)
        return found

    def choose(self, spec: Spec) -> Engine:
        is_memory = spec.type is VolumeType.MEMORY
        return self.volumes.engines.choose(
            parameters.engine(spec), spec.consistency, spec.replicas, is_memory=is_memory
        )

    def engine(self, volume: Volume) -> Engine:
        return self.volumes.engines.named(volume.engine)

    def nodes(self, volume: Volume, pool: Pool) -> list[str]:
        """Return the nodes that may use a volume; without fencing, those that do."""
        if self.has_fencing:
            return [each.node for each in volume.publications]
        try:
            return [each.node for each in pool.users(volume.id)]
        except (NotFound, statefile.Damaged):
            return []  # deleted just now, or not to be told: its condition says so

    def condition(self, volume: Volume, pool: Pool) -> csi_pb2.VolumeCondition:
        reach = self.volumes.reach(volume, pool)

        def verify() -> None:
            pool.users(volume.id)  # it cannot be deleted or given to another node as long as that is not to be told
            self.engine(volume).verify(reach)

        return answers.condition(verify)

    def answer(self, volume: Volume, pool: Pool) -> csi_pb2.Volume:
        engine = self.engine(volume)
        key = topology.SUPERNODE if engine.spans_machines else topology.NODE
        places = [topology.of_node(node) for node in engine.nodes(volume)] or [{key: self.volumes.place[key]}]
        return answers.volume(volume, engine.capacity(volume, pool), engine.context(volume, pool), places)


def why_unsupported(wanted: tuple[Capability, ...], spec: Spec) -> str:
    return unsupported(wanted, spec.type, spec.consistency)

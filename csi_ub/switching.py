"""The switch of a volume between strong, eventual and close-to-open: another engine for the same bytes, where they are.

Nothing is copied, and the record is the one commit point: up to it the old engine serves the volume, or is started
again by the supervisor after a crash; from it on the new one. Nodes whose PersistentVolume still tells of the old
engine ask the owner (``Volumes.find``).
"""

from dataclasses import replace

from csi_ub.model import Consistency, Spec, Volume, VolumeType
from csi_ub.pool import Pool
from csi_ub.volumes import Volumes
from ubhost.errors import InvalidRequest, UbError, Unsupported


def switch(volumes: Volumes, volume: Volume, pool: Pool, spec: Spec) -> Volume:
    """Let a volume that no node uses keep the promise of ``spec`` from now on; return its record.

    Raises:
        InUse: a node has it attached or published, or copies of it that are not all given back.
        InvalidRequest: it cannot keep that promise for what it was made for.
        Unsupported: this node has no engine for it.
        Unreachable: a peer does not answer, which may have a copy with edits that are nowhere else.
    """
    _refuse_impossible(volume, spec)
    old = volumes.engines.named(volume.engine)
    new = volumes.engines.choose("", spec.consistency)
    if new.name == old.name:
        return pool.volumes.update(volume.id, lambda it: replace(it, spec=spec))
    if old.spans_machines and not new.spans_machines and volumes.engines.has_peers:
        raise Unsupported(
            f"volume {volume.id} cannot become {spec.consistency.value}: of the engines for that, node {volumes.node} "
            f"has only {new.name}, and other nodes would reach the volume no more. Install GlusterFS"
        )

    def change(known: Volume) -> Volume:
        pool.refuse_in_use(known)
        old.refuse_copies(known)
        old.retire(known, pool)
        try:  # somebody may have attached it just before, or begun a copy while others were asked for theirs
            pool.refuse_in_use(known)
            old.refuse_copies(known)
        except UbError:
            old.prepare(known, pool)
            raise
        with pool.share(known.id) as share:  # what is left is of an earlier boot: the new engine would believe it
            for each in share.attachments():
                share.detach(each.node)
        old.forget(known, pool)
        return replace(known, spec=spec, engine=new.name, port=0)

    changed = pool.volumes.update(volume.id, change)
    return new.prepare(changed, pool)


def _refuse_impossible(volume: Volume, spec: Spec) -> None:
    what = f"volume {volume.id} cannot become {spec.consistency.value}"
    if volume.spec.type is VolumeType.MEMORY:
        raise InvalidRequest(f"{what}: memory is cached or not from the start")
    if volume.spec.replicas > 1 or volume.spec.engine:
        kept = f"replicas {volume.spec.replicas}" if volume.spec.replicas > 1 else f"engine {volume.spec.engine}"
        raise InvalidRequest(f"{what}: its class asks for {kept}")
    single = sorted(mode.name for mode in volume.modes if mode.is_single_node)
    if spec.consistency is Consistency.EVENTUAL and single:
        raise InvalidRequest(f"{what}: it was made for {single[0]}, and copies cannot keep a second node out")
    if volume.fenced:
        raise Unsupported(f"{what} while node {volume.fenced[0]} is shut out from it")

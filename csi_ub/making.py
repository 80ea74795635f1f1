"""CreateVolume and DeleteVolume."""

import time
from collections.abc import Iterable
from dataclasses import replace

import grpc
from ubproto.csi.v1 import csi_pb2

from csi_ub import parameters, topology
from csi_ub.model import CapacityRange, Source, Volume
from csi_ub.ownvolumes import OwnVolumes, why_unsupported
from csi_ub.pool import Pool
from csi_ub.reasons import OutOfRange
from csi_ub.requests import capabilities, capacity, required
from ubhost.errors import Conflict, Exhausted, InvalidRequest, NotFound


class Making(OwnVolumes):
    def CreateVolume(
        self, request: csi_pb2.CreateVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.CreateVolumeResponse:
        required(name=request.name)
        wanted = capabilities(request.volume_capabilities)
        sizes = capacity(request)
        spec = parameters.parse(request.parameters, frozenset(pool.name for pool in self.volumes.pools))
        spec = parameters.modify(spec, request.mutable_parameters)
        if why := why_unsupported(wanted, spec):
            raise InvalidRequest(why)
        want = Volume(
            id="",
            name=request.name,
            owner=self.volumes.node,
            pool="",
            spec=spec,
            modes=frozenset(each.mode for each in wanted),
            source=_source(request.volume_content_source) if request.HasField("volume_content_source") else None,
            created=int(time.time()),
        )
        is_here = topology.is_within(self.volumes.place, places(request.accessibility_requirements.requisite))
        with self.volumes.named(request.name, lambda pool: pool.volumes) as found:
            if found:  # looked at first: its source may have gone since, and its pool be full
                _refuse_incompatible(found[0], want, sizes, is_here=is_here)
            elif not is_here:
                raise Exhausted(f"the volume is asked for in places that node {self.volumes.node} does not serve")
            volume, pool = found or self._make(want, sizes)
        volume = self.engine(volume).prepare(volume, pool)
        return csi_pb2.CreateVolumeResponse(volume=self.answer(volume, pool))

    def DeleteVolume(
        self, request: csi_pb2.DeleteVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.DeleteVolumeResponse:
        required(volume_id=request.volume_id)
        found = self.volumes.own(request.volume_id)
        if found:
            volume, pool = found
            engine = self.engine(volume)
            pool.delete(volume.id, lambda it: engine.retire(it, pool), lambda it: engine.prepare(it, pool))
        else:
            self.volumes.refuse_foreign(request.volume_id)
        return csi_pb2.DeleteVolumeResponse()

    def _make(self, want: Volume, sizes: CapacityRange) -> tuple[Volume, Pool]:
        """Make a volume whose name is free, in the pool that it asks for, that of its source, or the first.

        Raises:
            NotFound, Unreachable: its source does not exist, or may not be the newest.
            OutOfRange: its source is larger than the limit.
            Exhausted: the pool has not so many bytes left.
            InvalidRequest: its source lies in another pool than it asks for.
            Unsupported: no engine here keeps what it asks for, or it cannot be made from a source.
        """
        least, source_pool = self._origin(want.source) if want.source else (0, None)
        pool = self.volumes.pool(want.spec.pool or (source_pool.name if source_pool else None))
        if source_pool and pool.name != source_pool.name:
            raise InvalidRequest(
                f"{want.source} lies in pool {source_pool.name!r}, the volume is asked for in {pool.name!r}"
            )
        engine = self.choose(want.spec)
        want = replace(want, pool=pool.name, size=_size(sizes, least), engine=engine.name)
        return pool.create(replace(want, size=engine.room_for(want, sizes.limit, pool))), pool

    def _origin(self, source: Source) -> tuple[int, Pool]:
        """Return the bytes that a copy of ``source`` needs at least, and the pool that has it.

        Raises:
            NotFound: it does not exist.
            Unsupported: it is of a kind that has no copies.
            Unreachable: its newest bytes may be elsewhere.
        """
        if not source.is_snapshot:
            volume, pool = self.own(source.id)
            self.engine(volume).check_current(volume, pool)
            return volume.size, pool
        found = self.volumes.snapshot(source.id)
        if found is None:
            raise NotFound(f"snapshot {source.id!r} does not exist on node {self.volumes.node}")
        return found[0].size, found[1]


def _source(content: csi_pb2.VolumeContentSource) -> Source:
    """Return what a volume is to be made from, whether it exists or not."""
    match content.WhichOneof("type"):
        case "snapshot":
            required(snapshot_id=content.snapshot.snapshot_id)
            return Source(content.snapshot.snapshot_id, is_snapshot=True)
        case "volume":
            required(volume_id=content.volume.volume_id)
            return Source(content.volume.volume_id, is_snapshot=False)
        case None:
            raise InvalidRequest("volume_content_source names neither a snapshot nor a volume")


def places(wanted: Iterable[csi_pb2.Topology]) -> list[dict[str, str]]:
    return [dict(each.segments) for each in wanted if each.segments]


def _size(sizes: CapacityRange, least: int) -> int:
    """Return the bytes of a new volume that must hold ``least``.

    Raises:
        OutOfRange: its source is larger than the limit.
    """
    size = max(sizes.required or sizes.limit, least)
    if sizes.limit and size > sizes.limit:
        raise OutOfRange(f"its source has {least} bytes, more than the limit of {sizes.limit}")
    return size


def _refuse_incompatible(existing: Volume, want: Volume, sizes: CapacityRange, *, is_here: bool) -> None:
    """Raise ``Conflict`` if the volume that has the name is not what is asked for."""
    if not is_here:
        raise Conflict(f"volume {want.name!r} exists on node {existing.owner}, in none of the places asked for")
    if not sizes.includes(existing.size):
        raise Conflict(
            f"volume {want.name!r} exists with {existing.size} bytes, not {sizes.required} to {sizes.limit or 'any'}"
        )
    if existing.spec != want.spec:
        raise Conflict(f"volume {want.name!r} exists with {parameters.difference(existing.spec, want.spec)}")
    if not want.modes <= existing.modes:
        names = ", ".join(sorted(mode.name for mode in existing.modes))
        raise Conflict(f"volume {want.name!r} exists for {names} only")
    if existing.source != want.source:
        made, wanted = existing.source or "nothing", want.source or "nothing"
        raise Conflict(f"volume {want.name!r} exists, made from {made}, not from {wanted}")

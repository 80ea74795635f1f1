"""ControllerPublishVolume and ControllerUnpublishVolume: which nodes may use a volume, with fencing.

Off unless ``fencing: true``: nodes settle by themselves who uses a volume (``csi_ub.share``), which is all a
cluster needs while its nodes are well. What they cannot do is to take a volume from a node that no longer answers.
Here that is done at the data, not by a promise of the node: the bricks no longer admit it. It is let in again only
after its driver has ended the client that it had, so that no file stays open from before.
"""

from dataclasses import replace

import grpc
from ubproto.csi.v1 import csi_pb2

from csi_ub.model import Attachment, Publication, Volume
from csi_ub.ownvolumes import OwnVolumes, why_unsupported
from csi_ub.pool import Pool
from csi_ub.reasons import InUse
from csi_ub.requests import capability, required
from ubhost.errors import Conflict, InvalidRequest, NotFound

NODE = "node"  # key of the publish context


class Attaching(OwnVolumes):
    def ControllerPublishVolume(
        self, request: csi_pb2.ControllerPublishVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ControllerPublishVolumeResponse:
        if not self.has_fencing:
            raise NotImplementedError
        required(
            volume_id=request.volume_id,
            node_id=request.node_id,
            volume_capability=request.HasField("volume_capability"),
        )
        wanted = capability(request.volume_capability)
        volume, pool = self.own(request.volume_id)
        if not self.volumes.knows(request.node_id):
            raise NotFound(f"node {request.node_id!r} is not known to node {self.volumes.node}")
        if why := why_unsupported((wanted,), volume.spec):
            raise InvalidRequest(why)
        self._publish(volume, pool, Publication(request.node_id, wanted.mode, request.readonly))
        return csi_pb2.ControllerPublishVolumeResponse(publish_context={NODE: request.node_id})

    def ControllerUnpublishVolume(
        self, request: csi_pb2.ControllerUnpublishVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ControllerUnpublishVolumeResponse:
        """Take a volume from a node, or from all if none is named; one that did not let go of it is shut out."""
        if not self.has_fencing:
            raise NotImplementedError
        required(volume_id=request.volume_id)
        found = self.volumes.own(request.volume_id)
        if found is None:
            self.volumes.refuse_foreign(request.volume_id)
            return csi_pb2.ControllerUnpublishVolumeResponse()
        volume, pool = found
        nodes = [request.node_id] if request.node_id else [each.node for each in volume.publications]
        for node in nodes:
            left = next((each for each in pool.users(volume.id) if each.node == node), None)
            if left:
                self._shut_out(volume, pool, left)
            pool.volumes.update(volume.id, lambda it, node=node: _without(it, node))  # type: ignore[misc]
        return csi_pb2.ControllerUnpublishVolumeResponse()

    def _publish(self, volume: Volume, pool: Pool, want: Publication) -> None:
        def change(known: Volume) -> Volume:
            for each in known.publications:
                _refuse_beside(known, each, want)
            if want in known.publications:
                return known
            after = replace(known, publications=(*known.publications, want))
            if want.node in known.fenced:
                after = replace(after, fenced=tuple(node for node in known.fenced if node != want.node))
                self.volumes.peers.ask(want.node, "client.end", {"volume": known.id})
                self.engine(known).fence(after, pool)
            return after

        pool.volumes.update(volume.id, change)

    def _shut_out(self, volume: Volume, pool: Pool, left: Attachment) -> None:
        if left.node == self.volumes.node:
            raise InUse(f"volume {volume.id} is staged on node {left.node}, which is its owner and well: unstage it")
        engine = self.engine(volume)

        def change(known: Volume) -> Volume:
            after = replace(known, fenced=tuple(sorted({*known.fenced, left.node})))
            engine.fence(after, pool)
            return after

        if left.is_exclusive:  # where others write too nothing is won: they never had it for themselves
            pool.volumes.update(volume.id, change)
        engine.expel(volume, pool, left.node)


def _refuse_beside(volume: Volume, other: Publication, want: Publication) -> None:
    if other.node == want.node:
        if other != want:
            how = "read-only" if other.readonly else "to write"
            raise Conflict(f"volume {volume.id} is published to node {other.node} as {other.mode.name}, {how}")
    elif other.claim.collides(want.claim):
        raise InUse(f"volume {volume.id} is published to node {other.node} as {other.mode.name}")


def _without(volume: Volume, node: str) -> Volume:
    return replace(volume, publications=tuple(each for each in volume.publications if each.node != node))

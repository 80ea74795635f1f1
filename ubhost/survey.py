"""Look at everything there is on this host, for people and for schedulers.

Sysfs must be readable; every other source may be missing, and says so in ``notes`` instead of failing the whole.
"""

from dataclasses import replace

from ubhost.discovery import Discovery, level_of
from ubhost.errors import Busy, UbError, Unsupported
from ubhost.provider import Device, Provider, Sharing
from ubhost.providers import AUTO, choose
from ubhost.rdma.sysfs import read_rdma
from ubhost.roots import Roots
from ubhost.sysfs import Folder, read_host
from ubhost.topology import topology
from ubhost.ubse.bodies import CpuLink, NodeInfo, NumaMemory
from ubhost.ubse.client import Absent, Down, Ubse


def survey(roots: Roots, wanted: str = AUTO, *, with_memory: bool = False) -> Discovery:
    """Look at everything once. ``with_memory`` asks UBSE for the memory of every node, one call a node.

    Raises:
        Unsupported: no provider is possible here; what was looked for is named.
        HostFault: sysfs makes no sense, or the provider is broken.
    """
    provider = choose(roots, wanted)
    notes: list[str] = []
    nodes, links, memory = _super_node(Ubse(roots.ubse_socket), notes, with_memory=with_memory)
    host = read_host(roots)
    notes += host.faults
    notes += [device.fault for device in host.devices if device.fault]
    notes += [entity.fault for entity in host.entities if entity.fault]
    rdma = read_rdma(Folder(roots.sys))
    found = topology(host, nodes, links)
    own = next((node.host_name for node in found.nodes if node.slot_id == found.position.slot_id), None)
    position = replace(found.position, host_name=own or found.position.host_name)
    return Discovery(
        kind=provider.kind,
        level=level_of(provider.kind, rdma),
        host=replace(host, position=position),
        topology=replace(found, position=position),
        sharing=_sharing(provider, notes),
        devices=_devices(provider, notes),
        memory=memory,
        rdma=rdma,
        notes=tuple(notes),
    )


def _sharing(provider: Provider, notes: list[str]) -> Sharing | None:
    try:
        return provider.sharing()
    except Unsupported as error:
        notes.append(str(error))
        return None


def _devices(provider: Provider, notes: list[str]) -> tuple[Device, ...]:
    """Without its manager the devices are not gone, but nobody can say which they are."""
    try:
        return provider.devices()
    except Busy as error:
        if str(error) not in notes:
            notes.append(str(error))
        return ()


def _super_node(
    ubse: Ubse, notes: list[str], *, with_memory: bool
) -> tuple[tuple[NodeInfo, ...], tuple[CpuLink, ...], tuple[NumaMemory, ...]]:
    """Ask UBSE about the other nodes; without it there are none to tell of."""
    try:
        nodes = ubse.nodes()
    except (Absent, Down) as error:
        notes.append(str(error))
        return (), (), ()
    try:
        links = ubse.cpu_links()
        asked = nodes if with_memory else ()
        memory = tuple(item for node in asked for item in ubse.numa_memory(node.slot_id))
    except UbError as error:
        notes.append(f"the super-node is known in part only: {error}")
        return nodes, (), ()
    return nodes, links, memory

"""Between NRI's messages and our values. Absent and zero mean "not said" on the wire, and ``None`` here.

Source: reference/nri.md section 1.7.
"""

from ubproto.nri.v1alpha1 import nri_pb2

from nri_qos import cpulist
from nri_qos.grants import Grants
from nri_qos.model import Container, Decision, Pod, Resources, State

_STATES = {nri_pb2.CONTAINER_RUNNING: State.RUNNING, nri_pb2.CONTAINER_STOPPED: State.STOPPED}


def pod(message: nri_pb2.PodSandbox) -> Pod:
    return Pod(
        id=message.id,
        name=message.name,
        uid=message.uid,
        namespace=message.namespace,
        labels=dict(message.labels),
        annotations=dict(message.annotations),
        cgroup_parent=message.linux.cgroup_parent,
        resources=resources(message.linux.pod_resources),
    )


def container(message: nri_pb2.Container) -> Container:
    linux = message.linux
    return Container(
        id=message.id,
        pod_id=message.pod_sandbox_id,
        name=message.name,
        state=_STATES.get(message.state, State.CREATED),
        resources=resources(linux.resources),
        cgroups_path=linux.cgroups_path,
        oom_score_adj=linux.oom_score_adj.value if linux.HasField("oom_score_adj") else None,
        devices=tuple((device.type, device.major, device.minor) for device in linux.devices),
        env=frozenset(item.partition("=")[0] for item in message.env),
    )


def resources(message: nri_pb2.LinuxResources) -> Resources:
    return Resources(
        shares=message.cpu.shares.value or None,
        quota=message.cpu.quota.value or None,
        period=message.cpu.period.value or None,
        cpus=message.cpu.cpus,
        mems=message.cpu.mems,
        memory_limit=message.memory.limit.value if message.memory.limit.value > 0 else None,
    )


def adjustment(decision: Decision, given: Grants) -> nri_pb2.ContainerAdjustment:
    """Return the adjustment of a container to be created; nothing is set that we do not decide."""
    message = nri_pb2.ContainerAdjustment()
    if not decision.is_empty:
        _fill(message.linux.resources, decision)
    for source, destination, options in given.mounts:
        message.mounts.add(type="bind", source=source, destination=destination, options=options)
    for name, value in given.env.items():
        message.env.add(key=name, value=value)
    for device in given.devices:  # the runtime allows it in the container's device cgroup, too
        made = message.linux.devices.add(path=device.path, type="c", major=device.major, minor=device.minor)
        made.file_mode.value, made.uid.value, made.gid.value = device.mode, device.uid, device.gid
    return message


def update(container_id: str, decision: Decision) -> nri_pb2.ContainerUpdate:
    """Return the update that keeps a container as decided."""
    message = nri_pb2.ContainerUpdate(container_id=container_id)
    _fill(message.linux.resources, decision)
    return message


def _fill(target: nri_pb2.LinuxResources, decision: Decision) -> None:
    if decision.shares is not None:
        target.cpu.shares.value = decision.shares
    if decision.cpus is not None:
        target.cpu.cpus = cpulist.render(decision.cpus)
    if decision.mems is not None:
        target.cpu.mems = cpulist.render(decision.mems)

"""Kubernetes pod manifests as pods and containers, the way kubelet would ask the runtime for them. Pure.

Source: Kubernetes API reference, "Pod" and "Quantity"; kubelet's conversion of requests to shares (1024 for each CPU,
at least 2) and of limits to quota.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nri_qos.model import NO_REQUEST_SHARES, Container, Pod, Resources
from ubhost import quantity
from ubhost.errors import InvalidRequest

_AMOUNTS = {"cpu": quantity.thousandths, "memory": quantity.whole}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pod of a manifest; ``starting`` containers run one after another and end before the others start."""

    pod: Pod
    starting: tuple[Container, ...]
    containers: tuple[Container, ...]


def pods(documents: Iterable[object]) -> list[Wanted]:
    """Return the pods in YAML documents: pods, lists of pods, and anything with a pod template.

    Raises:
        InvalidRequest: a document is none of these, or says something that no API server would accept.
    """
    wanted: list[Wanted] = []
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, dict):
            raise InvalidRequest(f"a manifest is an object, not {document!r}")
        if isinstance(document.get("items"), list):
            wanted.extend(pods(document["items"]))
            continue
        template = _part(document.get("spec"), "spec").get("template")
        source = document if template is None else {**_part(template, "template")}
        metadata = {**_part(document.get("metadata"), "metadata"), **_part(source.get("metadata"), "metadata")}
        wanted.append(_pod(metadata, _part(source.get("spec"), "spec")))
    return wanted


def _pod(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> Wanted:
    name, namespace = str(metadata.get("name", "pod")), str(metadata.get("namespace", "default"))
    uid = str(metadata.get("uid") or hashlib.sha256(f"{namespace}/{name}".encode()).hexdigest()[:12])
    before = _parts(spec, "initContainers")
    starting = [container for container in before if container.get("restartPolicy") != "Always"]
    sidecars = [container for container in before if container.get("restartPolicy") == "Always"]
    running = [*sidecars, *_parts(spec, "containers")]
    if not running:
        raise InvalidRequest(f"pod {namespace}/{name} has no containers")
    made = [_container(uid, container) for container in (*starting, *running)]
    pod = Pod(
        id=uid,
        name=name,
        uid=uid,
        namespace=namespace,
        labels={str(key): str(value) for key, value in _part(metadata.get("labels"), "labels").items()},
        annotations={str(key): str(value) for key, value in _part(metadata.get("annotations"), "annotations").items()},
        cgroup_parent=_cgroup_parent(uid, [*starting, *running]),
        resources=_together([container.resources for container in made[len(starting) :]]),
    )
    return Wanted(pod, tuple(made[: len(starting)]), tuple(made[len(starting) :]))


def _cgroup_parent(uid: str, containers: list[Mapping[str, Any]]) -> str:
    asked = [(_amounts(container, "requests"), _amounts(container, "limits")) for container in containers]
    if all(limits.keys() >= {"cpu", "memory"} and {**limits, **requests} == limits for requests, limits in asked):
        return f"/kubepods/pod{uid}"
    is_burstable = any(requests or limits for requests, limits in asked)
    return f"/kubepods/{'burstable' if is_burstable else 'besteffort'}/pod{uid}"


def _container(pod_id: str, spec: Mapping[str, Any]) -> Container:
    limits = _amounts(spec, "limits")
    requests = {**limits, **_amounts(spec, "requests")}
    cpu_limit, memory_limit = limits.get("cpu"), limits.get("memory")
    name = str(spec.get("name", "container"))
    return Container(
        id=f"{pod_id}-{name}",
        pod_id=pod_id,
        name=name,
        resources=Resources(
            shares=max(requests.get("cpu", 0) * 1024 // 1000, NO_REQUEST_SHARES),
            quota=cpu_limit * 100 if cpu_limit else None,
            period=100_000 if cpu_limit else None,
            memory_limit=memory_limit or None,
        ),
    )


def _together(resources: list[Resources]) -> Resources:
    """Return what containers that run at the same time request."""
    limits = [each.memory_limit or 0 for each in resources]
    return Resources(sum(each.shares or 0 for each in resources), memory_limit=sum(limits) if all(limits) else None)


def _amounts(spec: Mapping[str, Any], kind: str) -> dict[str, int]:
    """Return thousandths of CPUs and bytes of memory."""
    amounts = _part(_part(spec.get("resources"), "resources").get(kind), kind)
    found: dict[str, int] = {}
    for key, read in _AMOUNTS.items():
        try:
            found |= {key: read(amounts[key])} if key in amounts else {}
        except InvalidRequest as error:
            raise InvalidRequest(f"container {spec.get('name', '')}: {kind}.{key}: {error}") from None
    return found


def _parts(spec: Mapping[str, Any], what: str) -> list[Mapping[str, Any]]:
    value = spec.get(what) or []
    if not isinstance(value, list):
        raise InvalidRequest(f"{what} is a list, not {value!r}")
    return [_part(part, what) for part in value]


def _part(value: object, what: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"{what} is an object, not {value!r}")
    return value

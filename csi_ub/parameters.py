"""StorageClass parameters to a ``Spec``: all wrong keys and values are named at once."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import Enum
from typing import TypeVar

from csi_ub.model import Consistency, Spec, VolumeType
from ubhost.errors import InvalidRequest, Unsupported

E = TypeVar("E", bound=Enum)
_KEYS = frozenset({"type", "consistency", "replicas", "pool", "engine", "maxStaleness", "writers", "switchPolicy"})
REPLICATING = "glusterfs"  # the engine that keeps more than one replica
SHARED_MEMORY, DAX = "ub-shm", "dax"
MEMORY = (SHARED_MEMORY, DAX)  # the engines of type memory, and of no other
MUTABLE = "maxStaleness"
_SHORTEST_S = 3.0  # below that Syncthing cannot keep its word: it collects changes for a second, and hashes them
_LONGEST_S = 86400.0
_DURATION = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_ABSENT: Mapping[str, Mapping[str, str]] = {
    "engine": {"ub-block": "no shared SSU namespaces"},
}
_NAMESPACE = "csi.storage.k8s.io/pvc/namespace"
_FROM_KUBERNETES = "csi.storage.k8s.io/"  # sidecars and kubelet add names of the claim or the pod below this prefix


def by_people(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return what somebody wrote, without what Kubernetes added."""
    return {key: value for key, value in attributes.items() if not key.startswith(_FROM_KUBERNETES)}


def parse(parameters: Mapping[str, str], pools: frozenset[str]) -> Spec:
    """Return what ``parameters`` ask for, on a node that has ``pools``.

    Raises:
        InvalidRequest: unknown keys or values; the message names every one.
        Unsupported: a value that is good, but needs what this driver cannot use on this node.
    """
    wrong: list[str] = []
    given = by_people(parameters)
    for key, absent in _ABSENT.items():
        if given.get(key) in absent:
            raise Unsupported(f"{key}: {given[key]} is not to be had on this node: {absent[given[key]]}")
    wrong += [f"unknown parameter {key!r}" for key in sorted(given.keys() - _KEYS)]
    spec = Spec(
        type=_choice("type", given, VolumeType.FILESYSTEM, wrong),
        consistency=_choice("consistency", given, Consistency.STRONG, wrong),
        pool=given.get("pool"),
        engine=given.get("engine", ""),
        max_staleness_s=_duration(given[MUTABLE], wrong) if MUTABLE in given else Spec().max_staleness_s,
        switch_policy=_choice("switchPolicy", given, Spec().switch_policy, wrong),
        writers=_choice("writers", given, Spec().writers, wrong),
        replicas=_replicas(given, wrong),
    )
    if spec.type is VolumeType.MEMORY:
        spec = replace(spec, namespace=parameters.get(_NAMESPACE, ""))
    wrong += _misfits(spec, given)
    if spec.pool is not None and spec.pool not in pools:
        wrong.append(f"pool {spec.pool!r} is none of {', '.join(sorted(pools))}")
    if wrong:
        raise InvalidRequest("; ".join(wrong))
    return spec


def _misfits(spec: Spec, given: Mapping[str, str]) -> Iterator[str]:
    """Yield what does not go together."""
    is_memory, is_eventual = spec.type is VolumeType.MEMORY, spec.consistency is Consistency.EVENTUAL
    if spec.engine and (spec.engine in MEMORY) is not is_memory:
        yield f"engine {spec.engine!r} is not for type {spec.type.value}"
    if spec.consistency is Consistency.CLOSE_TO_OPEN and spec.type is not VolumeType.FILESYSTEM:
        yield "consistency close-to-open is for type filesystem only"
    if spec.replicas > 1 and (spec.consistency is not Consistency.STRONG or spec.engine not in ("", REPLICATING)):
        yield f"replicas 3 is for consistency strong and engine {REPLICATING} only"
    if spec.type is VolumeType.BLOCK and spec.consistency is not Consistency.STRONG:
        yield "type block is for consistency strong only"
    if spec.replicas > 1 and spec.type not in (VolumeType.FILESYSTEM, VolumeType.BLOCK):
        yield "replicas 3 is for types filesystem and block: a model has a copy on each node with consistency eventual"
    if MUTABLE in given and (is_memory or not is_eventual):
        yield f"{MUTABLE} is for files and models of consistency eventual only"
    if "writers" in given and (spec.type is not VolumeType.FILESYSTEM or not is_eventual):
        yield "writers is for type filesystem of consistency eventual only"
    if "switchPolicy" in given and spec.type is not VolumeType.MODEL:
        yield "switchPolicy is for type model only"


def engine(spec: Spec) -> str:
    """Return the engine that a volume needs; "" if any will do that keeps its promise."""
    return spec.engine or (REPLICATING if spec.replicas > 1 else "")


def difference(known: Spec, wanted: Spec) -> str:
    """Return in which parameters two specs differ, for people."""
    before, after = _told(known), _told(wanted)
    return ", ".join(f"{key} {before[key]}, not {after[key]}" for key in before if before[key] != after[key])


def _told(spec: Spec) -> dict[str, str]:
    """Return the parameters that ask for ``spec``."""
    return {
        "type": spec.type.value,
        "consistency": spec.consistency.value,
        "replicas": str(spec.replicas),
        "pool": spec.pool or "of any name",
        "engine": spec.engine or "of any name",
        MUTABLE: f"{spec.max_staleness_s:g}s",
        "switchPolicy": spec.switch_policy.value,
        "writers": spec.writers.value,
        _NAMESPACE: spec.namespace or "unknown",
    }


def check_context(context: Mapping[str, str]) -> None:
    """Raise ``InvalidRequest`` if a volume context, which people may have written, holds values that cannot be."""
    wrong: list[str] = []
    _choice("type", context, VolumeType.FILESYSTEM, wrong)
    _choice("consistency", context, Consistency.STRONG, wrong)
    _choice("switchPolicy", context, Spec().switch_policy, wrong)
    _choice("writers", context, Spec().writers, wrong)
    _duration(context.get(MUTABLE, f"{Spec().max_staleness_s:g}s"), wrong)
    if wrong:
        raise InvalidRequest(f"volume context: {'; '.join(wrong)}")


def refuse_all(parameters: Mapping[str, str]) -> None:
    """Raise ``InvalidRequest`` if there is any parameter but those that Kubernetes adds."""
    if unknown := sorted(by_people(parameters)):
        raise InvalidRequest("; ".join(f"unknown parameter {key!r}" for key in unknown))


def modify(spec: Spec, mutable: Mapping[str, str]) -> Spec:
    """Return ``spec`` changed by the parameters of a VolumeAttributesClass; keys that are absent change nothing.

    Raises:
        InvalidRequest: a key or a value is wrong; the message names every one.
    """
    given = by_people(mutable)
    wrong = [f"unknown mutable parameter {key!r}" for key in sorted(given.keys() - {MUTABLE, "consistency"})]
    consistency = _choice("consistency", given, spec.consistency, wrong)
    if MUTABLE in given and consistency is not Consistency.EVENTUAL:
        wrong.append(f"{MUTABLE} is for consistency eventual only")
    staleness = _duration(given[MUTABLE], wrong) if MUTABLE in given else spec.max_staleness_s
    changed = replace(spec, consistency=consistency, max_staleness_s=staleness)
    if consistency is not Consistency.EVENTUAL:  # what is for those only is as if it had never been asked for
        changed = replace(changed, max_staleness_s=Spec().max_staleness_s, writers=Spec().writers)
    wrong += _misfits(changed, {})
    if wrong:
        raise InvalidRequest("; ".join(wrong))
    return changed


def _replicas(given: Mapping[str, str], wrong: list[str]) -> int:
    text = given.get("replicas", "1")
    if text not in ("1", "3"):
        wrong.append(f"replicas is {text!r}, not 1 or 3")
    return 3 if text == "3" else 1


def _duration(text: str, wrong: list[str]) -> float:
    found = _DURATION.fullmatch(text)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not _SHORTEST_S <= seconds <= _LONGEST_S:
        wrong.append(f"{MUTABLE} is {text!r}, not a duration of {_SHORTEST_S:g}s to {_LONGEST_S:g}s, such as 5s or 2m")
    return seconds


def _choice(key: str, given: Mapping[str, str], default: E, wrong: list[str]) -> E:
    choices = {choice.value: choice for choice in type(default)}
    text = given.get(key, default.value)
    if text not in choices:
        wrong.append(f"{key} is {text!r}, not one of {', '.join(choices)}")
    return choices.get(text, default)

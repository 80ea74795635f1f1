"""StorageClass parameters to a ``Spec``: all wrong keys and values are named at once."""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from csi_ub.model import Consistency, Spec, VolumeType
from ubhost.errors import InvalidRequest

E = TypeVar("E", bound=Enum)
_KEYS = frozenset({"type", "consistency", "replicas", "pool", "engine"})
_FROM_KUBERNETES = "csi.storage.k8s.io/"  # external-provisioner adds names of the claim below this prefix


def parse(parameters: Mapping[str, str], pools: frozenset[str]) -> Spec:
    """Return what ``parameters`` ask for, on a node that has ``pools``.

    Raises:
        InvalidRequest: unknown keys or values; the message names every one.
    """
    wrong: list[str] = []
    given = {key: value for key, value in parameters.items() if not key.startswith(_FROM_KUBERNETES)}
    wrong += [f"unknown parameter {key!r}" for key in sorted(given.keys() - _KEYS)]
    spec = Spec(
        type=_choice("type", given, VolumeType.FILESYSTEM, wrong),
        consistency=_choice("consistency", given, Consistency.STRONG, wrong),
        pool=given.get("pool"),
        engine=given.get("engine", ""),
    )
    if given.get("replicas", "1") != "1":
        wrong.append(f"replicas is {given['replicas']!r}, not 1")
    if spec.pool is not None and spec.pool not in pools:
        wrong.append(f"pool {spec.pool!r} is none of {', '.join(sorted(pools))}")
    if wrong:
        raise InvalidRequest("; ".join(wrong))
    return spec


def refuse_all(parameters: Mapping[str, str]) -> None:
    """Raise ``InvalidRequest`` if there is any parameter but those that Kubernetes adds."""
    unknown = sorted(key for key in parameters if not key.startswith(_FROM_KUBERNETES))
    if unknown:
        raise InvalidRequest("; ".join(f"unknown parameter {key!r}" for key in unknown))


def _choice(key: str, given: Mapping[str, str], default: E, wrong: list[str]) -> E:
    choices = {choice.value: choice for choice in type(default)}
    text = given.get(key, default.value)
    if text not in choices:
        wrong.append(f"{key} is {text!r}, not one of {', '.join(choices)}")
    return choices.get(text, default)

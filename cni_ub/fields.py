"""Read one key of a JSON object as what it should be, or say what is wrong with it. Pure."""

from collections.abc import Mapping
from typing import Any

from cni_ub.errors import UnsupportedField
from ubhost import quantity
from ubhost.errors import InvalidRequest


def object_of(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"{key} is {value!r}, expected an object")
    return value


def text_of(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidRequest(f"{key} is {value!r}, expected a string")
    return value


def number_of(raw: Mapping[str, Any], key: str, most: int = (1 << 32) - 1) -> int | None:
    value = raw.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise InvalidRequest(f"{key} is {value!r}, expected a whole number from 0 to {most}")
    return value


def size_of(raw: Mapping[str, Any], key: str) -> int:
    """Read bytes as Kubernetes writes them: ``64Mi``, ``1G``, ``4096``."""
    try:
        return quantity.size(text_of(raw, key) or "0")
    except InvalidRequest as error:
        raise InvalidRequest(f"{key}: {error}") from None


def choice_of(raw: Mapping[str, Any], key: str, choices: tuple[str, ...]) -> str:
    value = raw.get(key)
    if value is None or value == "":
        return choices[0]
    if value not in choices:
        raise UnsupportedField(f"unsupported value {value!r} of key {key!r}, expected one of {', '.join(choices)}")
    return str(value)

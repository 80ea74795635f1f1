"""Configuration files: YAML into frozen dataclasses, strictly, with every error named at once.

Source: design section 3 (snake_case keys, unknown keys refused, all errors together).
"""

import dataclasses
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from ubhost.errors import InvalidRequest

C = TypeVar("C")
_BOOL, _INT = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:int"
LONGEST = 80  # characters of a wrong value that are shown
MOST = 1_000_000  # values in a document


def load(path: Path | None, kind: type[C]) -> C:
    """Return the configuration in ``path``; the defaults of ``kind`` if ``path`` is ``None``.

    Raises:
        InvalidRequest: the file cannot be read, is not YAML, or has wrong or unknown keys; all are named, with
            their place in the file.
    """
    if path is None:
        return convert({}, kind, where="defaults")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    return parse(text, kind, where=str(path))


def parse(text: str, kind: type[C], *, where: str) -> C:
    """Return YAML ``text`` as a ``kind``; ``where`` names the source in errors.

    Raises:
        InvalidRequest: see ``load``.
    """
    content, *more = documents(text, where=where) or [None]
    if more:
        raise InvalidRequest(f"{where} holds {len(more) + 1} documents; one is expected")
    return convert({} if content is None else content, kind, where=where)


def documents(text: str, *, where: str) -> list[Any]:
    """Return the documents of YAML ``text``; ``where`` names the source in errors.

    Raises:
        InvalidRequest: it is not YAML, or a key is given twice.
    """
    try:
        return list(yaml.load_all(text, _Strict))
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        raise InvalidRequest(f"{where} is not YAML: {error}") from error
    except RecursionError:
        raise InvalidRequest(f"{where} is not YAML that we take: nested too deep") from None


class _Strict(yaml.SafeLoader):
    """YAML as usual, but a key that is given twice is an error: the first one was meant too.

    Words are words: YAML 1.1 reads ``off`` and ``no`` as false and ``1:20`` as 80; 1.2 and we do not. So is a number
    that is longer than any: what it is for then says which key has it.
    """

    def construct_document(self, node: yaml.Node) -> Any:
        if _expanded(node, {}) > MOST:
            raise yaml.constructor.ConstructorError(None, None, "aliases stand for too much, or for themselves")
        return super().construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        if doubles := sorted({key for key in keys if keys.count(key) > 1}):
            raise yaml.constructor.ConstructorError(None, None, f"{', '.join(doubles)} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _expanded(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Return how many values a node is with all its aliases written out: ten lines can be more than a machine holds."""
    if id(node) not in sizes:
        sizes[id(node)] = MOST + 1  # should it be a part of itself
        parts = node.value if isinstance(node, yaml.SequenceNode) else ()
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else parts
        sizes[id(node)] = 1 + sum(_expanded(part, sizes) for part in parts)
    return sizes[id(node)]


_Strict.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_BOOL, _INT)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Strict.add_implicit_resolver(_BOOL, re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Strict.add_implicit_resolver(
    _INT,
    re.compile(r"[-+]?(?:0x[0-9a-fA-F_]{1,16}|0b[01_]{1,64}|0[0-7_]{0,22}|[1-9][0-9_]{0,30})$"),
    list("-+0123456789"),
)


def convert(content: object, kind: type[C], *, where: str) -> C:
    """Return ``content`` as a ``kind``; ``where`` names the source in errors.

    Raises:
        InvalidRequest: see ``load``.
    """
    errors = list(_errors(content, kind, "$"))
    if errors:
        raise InvalidRequest(f"{where}: " + "; ".join(errors))
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:  # a rule of the dataclass as a whole
        raise InvalidRequest(f"{where}: {error}") from error


def _errors(content: object, kind: Any, at: str) -> Iterator[str]:
    """Walk dataclasses, their lists and optionals; hand the leaves to msgspec."""
    if isinstance(kind, types.UnionType):
        inner = [k for k in typing.get_args(kind) if k is not type(None)]
        if content is not None and len(inner) == 1:
            yield from _errors(content, inner[0], at)
            return
    if dataclasses.is_dataclass(kind) and isinstance(content, dict):
        yield from _dataclass_errors(content, kind, at)
        return
    item = typing.get_args(kind)
    if typing.get_origin(kind) in (list, tuple) and item and isinstance(content, list):
        for index, value in enumerate(content):
            yield from _errors(value, item[0], f"{at}[{index}]")
        return
    try:
        msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        yield f"{at}: {str(error).partition(' - at ')[0]}, got {_short(repr(content))}"


def _short(text: str) -> str:
    """A wrong file may be anything, and of any length."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _dataclass_errors(content: dict[Any, Any], kind: Any, at: str) -> Iterator[str]:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in content:
        if key not in fields:
            yield f"{at}.{_short(str(key))}: unknown key, expected one of {', '.join(sorted(fields))}"
    for name, field in fields.items():
        if name in content:
            yield from _errors(content[name], hints[name], f"{at}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            yield f"{at}.{name}: missing"

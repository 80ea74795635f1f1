"""The size limits and the character rules that CSI sets for every request (spec 1.12, "Size Limits").

Strings have at most 128 bytes and maps 4 KiB, but: a node id may have 256, a path as many as the system allows, and
the mount flags of a capability share 4 KiB.
"""

import re

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from ubhost.errors import InvalidRequest

STRING, MAP, NODE_ID, PATH = 128, 4096, 256, 4096  # bytes
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_PATHS = frozenset({"staging_target_path", "target_path", "volume_path"})


def check(request: Message) -> None:
    """Raise ``InvalidRequest`` that names the first field of ``request`` over its limit; values are not printed."""
    for field, value in request.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].type == FieldDescriptor.TYPE_STRING:
                _limit(field.name, sum(len(k.encode()) + len(v.encode()) for k, v in value.items()), MAP)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in value if field.is_repeated else (value,):
                check(inner)
        elif field.type == FieldDescriptor.TYPE_STRING:
            _check_strings(field, value)


def _check_strings(field: FieldDescriptor, value: str | list[str]) -> None:
    if field.name == "mount_flags":
        _limit(field.name, sum(len(flag.encode()) for flag in value), MAP)
        return
    limit = PATH if field.name in _PATHS else NODE_ID if field.name == "node_id" else STRING
    for text in [value] if isinstance(value, str) else value:
        _limit(field.name, len(text.encode()), limit)
        if field.name == "name" and _CONTROL.search(text):
            raise InvalidRequest(f"name {text!r} holds a control character")


def _limit(field: str, size: int, limit: int) -> None:
    if size > limit:
        raise InvalidRequest(f"{field} has {size} bytes, more than the {limit} that CSI allows")

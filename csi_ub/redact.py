"""Keep what callers entrust to us out of logs and error messages.

Secret are: every field that csi.proto marks ``csi_secret`` (secrets maps and mount flags), and the service account
tokens that Kubernetes puts into a volume context.
"""

import traceback
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from ubproto.csi.v1 import csi_pb2

_TOKENS = "csi.storage.k8s.io/serviceAccount.tokens"
_SHORTEST = 4  # replacing shorter pieces ("ro", "1") would garble messages and hide nothing


def text(message: str, request: Any) -> str:
    """Return ``message`` without the secrets of ``request``."""
    for secret in sorted(set(secrets(request)), key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            message = message.replace(secret, "***")
    return message


def trace(error: BaseException, request: Any) -> str:
    """Return the traceback of ``error`` without the secrets of ``request``."""
    return text("".join(traceback.format_exception(error)), request)


def secrets(request: Any) -> Iterator[str]:
    """Yield every secret value of a CSI request, at any depth."""
    if not isinstance(request, Message):
        return
    for field, value in request.ListFields():
        if field.GetOptions().Extensions[csi_pb2.csi_secret]:
            yield from value.values() if _is_map(field) else value
        elif _is_map(field):
            if _TOKENS in value:
                yield value[_TOKENS]
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in value if field.is_repeated else (value,):
                yield from secrets(inner)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry

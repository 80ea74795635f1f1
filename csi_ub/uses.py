"""Which uses of a volume its pods can have: one judgement, for everyone who is asked."""

from collections.abc import Iterable, Mapping

from csi_ub.model import Capability, Writers
from csi_ub.mountflags import attributes
from ubhost.errors import InvalidRequest, Unsupported


def unsupported(wanted: Iterable[Capability], *, is_model: bool, is_eventual: bool) -> str:
    """Return why a volume cannot be used in one of these ways; "" if it can in all of them."""
    return next((why for each in wanted if (why := _refusal(each, is_model, is_eventual))), "")


def refuse_writing(volume_id: str, context: Mapping[str, str], node: str) -> None:
    """Raise ``Unsupported`` if the volume is written on its owner alone (``writers: single``) and ``node`` is another.

    With one place to write there are no conflicts.
    """
    if is_read_only_on(context, node):
        raise Unsupported(
            f"volume {volume_id} has writers: single: pods write it on node {context['owner']}, on node {node} they "
            "mount it read-only"
        )


def is_read_only_on(context: Mapping[str, str], node: str) -> bool:
    """Whether the volume may only be read on ``node``."""
    return context.get("writers") == Writers.SINGLE.value and context.get("owner") != node


def _refusal(wanted: Capability, is_model: bool, is_eventual: bool) -> str:
    if wanted.is_block:
        return "a volume of type filesystem has no block device"
    if is_model and not wanted.mode.is_read_only:
        return f"access mode {wanted.mode.name} is not for type model: pods only read it, ask for ReadOnlyMany"
    if is_eventual and wanted.mode.is_single_node:
        return f"access mode {wanted.mode.name} needs consistency strong: eventual copies cannot keep a second node out"
    try:
        attributes(wanted, is_read_only=is_model)
    except InvalidRequest as error:
        return str(error)
    return ""

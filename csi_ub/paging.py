"""Lists in pages. A token is the id of the last entry of the page before, so it survives what is added or removed."""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from csi_ub.model import is_own_id
from csi_ub.reasons import StaleToken
from ubhost.errors import InvalidRequest


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=_HasId)


def page(items: Iterable[T], token: str, most: int) -> tuple[Sequence[T], str]:
    """Return the entries after ``token``, at most ``most`` (0: all), and the token of the next page ("" if none).

    Raises:
        InvalidRequest: ``most`` is negative.
        StaleToken: no page of ours ended so.
    """
    if most < 0:
        raise InvalidRequest(f"max_entries is {most}, which is negative")
    if token and not is_own_id(token):
        raise StaleToken(f"starting_token {token!r} is not from this driver: start the list again")
    rest = sorted((item for item in items if item.id > token), key=lambda item: item.id)
    if most == 0 or len(rest) <= most:
        return rest, ""
    return rest[:most], rest[most - 1].id

"""A lock that threads and programs wait for."""

import threading
from pathlib import Path

import pytest

from ubhost.errors import HostFault
from ubhost.filelock import locked


def test_one_holds_it_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    order: list[str] = []

    def wait() -> None:
        with locked(path):
            order.append("second")

    with locked(path):
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.05)
        order.append("first")
    waiting.join(10)
    assert order == ["first", "second"]


def test_it_is_given_back_when_its_holder_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "lock"):
        raise ZeroDivisionError
    with locked(tmp_path / "lock"):
        pass


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HostFault, match=r"cannot lock .*/lock"), locked(tmp_path / "lock"):
        pass
    assert not (tmp_path / "elsewhere").exists()

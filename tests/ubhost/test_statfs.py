"""The kernel's names of file systems."""

from pathlib import Path

import pytest

from ubhost.kernel.statfs import magic

PROC_SUPER_MAGIC = 0x9FA0


def test_a_file_system_is_known_by_its_number() -> None:
    assert magic(Path("/proc")) == PROC_SUPER_MAGIC


def test_a_path_that_is_not_there_has_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        magic(tmp_path / "nothing")

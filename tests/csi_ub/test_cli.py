"""``ubnode volumes`` where what the driver wrote down cannot be believed."""

from pathlib import Path

import pytest

from ubhost.roots import Roots
from ubnode.__main__ import main


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"version": 1}',
        '{"version": 1, "node": 7, "config": {}}',
        '{"version": 1, "node": "a", "config": 3}',
    ],
)
def test_a_damaged_record_of_the_driver_is_named_with_what_mends_it(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UB_ROOT", str(tmp_path))
    path = Roots(tmp_path).run / "csi.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert main(["volumes"]) == 1
    assert capsys.readouterr().err.startswith(f"ubnode volumes: {path}")

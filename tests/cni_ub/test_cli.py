"""``ubnode attachments`` on a host whose provider is gone: nothing can be repaired, and that is told."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ubhost.ledger import Ledger
from ubhost.record import Record, State
from ubhost.roots import Roots
from ubnode.__main__ import main


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UB_ROOT", str(tmp_path))
    ledger = Ledger(Roots(tmp_path))
    record = Record("urma_0", "c" * 64, "net1", pod="web/front", boot_id=ledger.boot_id)
    ledger.write(replace(record, state=State.DETACHING, is_allocated=True))


@pytest.mark.usefixtures("record")
def test_what_could_not_be_repaired_is_in_the_document_and_nothing_is_behind_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["attachments", "--repair", "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)["attachments"]
    assert row["state"] == "not repaired: its release is not finished"
    assert "no UB host here" in row["problems"][0]


@pytest.mark.usefixtures("record")
def test_what_could_not_be_repaired_is_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attachments", "--repair"]) == 1
    head, row, problem = capsys.readouterr().out.splitlines()
    assert head.split() == ["DEVICE", "POD", "CONTAINER", "INTERFACE", "NETWORK", "ADDRESSES", "SINCE", "STATE"]
    assert row.split()[:5] == ["urma_0", "web/front", "c" * 13, "net1", "-"]
    assert problem.startswith("urma_0: no UB device can be given out: no UB host here")


@pytest.mark.usefixtures("record")
@pytest.mark.parametrize(("said", "code"), [("c" * 13, 1), ("d", 1)])
def test_a_container_that_is_gone_is_named_by_the_beginning_of_its_id(
    said: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attachments", "--gone", said]) == code
    shown, errors = capsys.readouterr()
    assert ("not repaired" in shown) is (said[0] == "c")
    assert ("0 containers with an attachment begin with 'd'" in errors) is (said == "d")

"""docs/security.md names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text()


def test_every_test_that_the_page_leans_on_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^\s*def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(named) > 15
    assert named - defined == set()


def test_every_threat_is_stopped_by_a_tested_rule_or_said_not_to_be() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and line.count("|") == 4]
    threats = [row for row in rows if not row.startswith(("| threat", "| from", "|---"))]
    assert threats
    assert [row for row in threats if "`test_" not in row and "**not stopped by us**" not in row] == []

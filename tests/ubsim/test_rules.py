"""docs/simulator.md says which test holds which rule: they exist."""

import re
from pathlib import Path

TOP = Path(__file__).parents[2]


def test_every_test_that_the_page_names_exists() -> None:
    page = (TOP / "docs/simulator.md").read_text()
    named = set(re.findall(r"`(test_[a-z0-9_]+)`", page))
    sources = "".join(path.read_text() for path in (TOP / "tests/ubsim").glob("test_*.py"))
    defined = set(re.findall(r"^def (test_[a-z0-9_]+)\(", sources, re.MULTILINE))
    assert len(named) > 30
    assert named - defined == set()

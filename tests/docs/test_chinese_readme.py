"""README.zh.md holds what README.md holds: the same parts, pictures, links, output and names."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
EACH_OTHER = {"README.md", "README.zh.md"}


def shape(name: str) -> dict[str, object]:
    text = (ROOT / name).read_text()
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return {
        "headings": re.findall(r"^#+(?= )", prose, re.MULTILINE),
        "links": sorted(set(re.findall(r"\]\(([^)]+)\)", prose)) - EACH_OTHER),
        "output": re.findall(r"^```.*?^```$", text, re.DOTALL | re.MULTILINE),
        "commands": re.findall(r"^    (\S.*?)  +#", prose, re.MULTILINE),
        "names": sorted(set(re.findall(r"`([^`]+)`", prose))),
        "rows": [row.count("|") for row in prose.splitlines() if row.startswith("|")],
    }


def test_both_say_the_same() -> None:
    assert shape("README.zh.md") == shape("README.md")


def test_all_that_is_linked_exists() -> None:
    text = (ROOT / "README.zh.md").read_text()
    assert [link for link in re.findall(r"\]\(([^)]+)\)", text) if not (ROOT / link).exists()] == []

"""docs/troubleshooting.md quotes messages that the code really gives, and knows every code."""

import ast
import re
from pathlib import Path

import csi_ub.errors
import nri_qos.errors
from cni_ub.errors import CODES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "troubleshooting.md").read_text()
OF_OTHERS = ("Insufficient unifiedbus.com/ub_net_device", "unresolvable CDI devices ", "undeclared", "subdir")


def pieces() -> set[str]:
    """Return every piece of text between the values of the messages in the code."""
    found: set[str] = set()
    for package in ("ubhost", "cni_ub", "csi_ub", "nri_qos"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value)
    return found


def quoted() -> set[str]:
    """Return the fixed parts of the messages in the second last columns of the tables: those with a "…" or a space."""
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and "…" in line]
    cells = [cell for row in rows for cell in re.split(r" \| ", row)[:-2]]
    messages = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    parts = {part for message in messages for part in re.split(r"…|\.\.\.", message)}
    return {part for part in parts if len(part.strip(" :,;")) > 5} - set(OF_OTHERS)


def test_every_quoted_message_is_one_that_the_code_gives() -> None:
    known = pieces()
    assert len(quoted()) > 25
    assert [part for part in sorted(quoted()) if not any(part.strip() in text for text in known)] == []


def test_every_metric_and_key_that_is_named_is_in_the_reference() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text()
    named = set(re.findall(r"`(ub_[a-z_]+|[a-z_]+(?:\[\])?\.[a-z_]+|reconcile_period|metrics_address)`", TEXT))
    assert named
    assert {name for name in named if f"`{name}`" not in reference} - {"qos.min"} == set()


def explained(plugin: str) -> set[str]:
    """Return the codes in the table of a plugin."""
    [table] = re.findall(rf"^\| {plugin}[^\n]*\n\|[-|]+\n((?:\|[^\n]*\n)+)", TEXT, re.MULTILINE)
    return {row.split(" | ")[0].strip("| ") for row in table.splitlines()}


def test_every_code_of_every_plugin_is_explained() -> None:
    assert explained("ub-cni") == {"1", *(str(code) for code in CODES.values())}
    assert explained("ub-csi") == {status.name for status in csi_ub.errors.STATUS.values()}
    assert explained("nri-qos") == {status.name for status in nri_qos.errors.STATUS.values()}

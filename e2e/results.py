"""JUnit files of the parts of a run, made into one."""

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """What a run came to; ``failures`` names the tests."""

    passed: int
    skipped: int
    failures: tuple[str, ...]


def merge(folder: Path, name: str) -> Outcome:
    """Write all suites found in ``folder`` to one file there and count them."""
    suites = ElementTree.Element("testsuites")
    for path in sorted(folder.glob("*.xml")):
        if path.name != name:
            suites.extend(ElementTree.parse(path).getroot().iter("testsuite"))
    ElementTree.ElementTree(suites).write(folder / name, encoding="utf-8", xml_declaration=True)
    cases = list(suites.iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    names = tuple(f"{case.get('classname')}::{case.get('name')}" for case in failed)
    return Outcome(len(cases) - len(failed) - len(skipped), len(skipped), names)

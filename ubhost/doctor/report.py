"""What the doctor says, for people and for programs. Pure."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ubhost.doctor import cluster, compatibility, host, plugins
from ubhost.doctor.facts import Facts
from ubhost.doctor.findings import Finding, Verdict
from ubhost.show.data import plain

_ORDER = (Verdict.PROBLEM, Verdict.WARNING, Verdict.NOTE, Verdict.OK)
_MARKS = {Verdict.PROBLEM: "problem", Verdict.WARNING: "warning", Verdict.NOTE: "note   ", Verdict.OK: "ok     "}


def examine(facts: Facts, more: Iterable[Finding] = ()) -> tuple[Finding, ...]:
    """Return every finding, and ``more`` of others, the worst first, otherwise in the order of the checks."""
    found = (*host.check(facts), *cluster.check(facts), *plugins.check(facts), *compatibility.check(facts), *more)
    return tuple(sorted(found, key=lambda finding: _ORDER.index(finding.verdict)))


def text(findings: Iterable[Finding]) -> str:
    listed = tuple(findings)
    lines = []
    for finding in listed:
        lines.append(f"{_MARKS[finding.verdict]}  {finding.title}")
        if finding.cause:
            lines.append(f"         cause: {finding.cause}")
        if finding.next_step:
            lines.append(f"         next:  {finding.next_step}")
    count = Counter(finding.verdict for finding in listed)
    lines.append("")
    lines.append(", ".join(_counted(count[verdict], verdict) for verdict in _ORDER if count[verdict]))
    return "\n".join(lines)


def _counted(count: int, verdict: Verdict) -> str:
    return f"{count} {verdict.value}{'s' if count > 1 and verdict is not Verdict.OK else ''}"


def document(findings: Iterable[Finding]) -> dict[str, Any]:
    listed = tuple(findings)
    return {"version": 1, "fit": not has_problem(listed), "findings": plain(listed)}


def has_problem(findings: Iterable[Finding]) -> bool:
    return any(finding.verdict is Verdict.PROBLEM for finding in findings)

"""What a check says. Pure."""

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    OK = "ok"
    NOTE = "note"  # nothing to do; good to know
    WARNING = "warning"  # works, but not as well or as safely as it could
    PROBLEM = "problem"  # pods will fail


@dataclass(frozen=True, slots=True)
class Finding:
    """``check`` is a stable name for programs; ``cause`` and ``next_step`` are empty when all is well."""

    check: str
    verdict: Verdict
    title: str
    cause: str = ""
    next_step: str = ""


def ok(check: str, title: str) -> Finding:
    return Finding(check, Verdict.OK, title)


def note(check: str, title: str, cause: str = "") -> Finding:
    return Finding(check, Verdict.NOTE, title, cause)


def warning(check: str, title: str, cause: str, next_step: str) -> Finding:
    return Finding(check, Verdict.WARNING, title, cause, next_step)


def problem(check: str, title: str, cause: str, next_step: str) -> Finding:
    return Finding(check, Verdict.PROBLEM, title, cause, next_step)

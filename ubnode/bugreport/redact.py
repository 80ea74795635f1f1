"""Text without its secrets. Too much is taken rather than too little: who reads a report asks again.

Secret is whatever follows a name that says so (``password: x``, ``--token=x``, ``"apiKey": "x"``, with everything
indented below it), and whatever looks like a secret wherever it stands (private keys, JSON web tokens, user:password
in an address, Kubernetes' bootstrap tokens).
"""

import json
import re
from typing import Any

HIDDEN = "[removed]"

_WORD = (
    r"(?:pass(?:word|wd|phrase)|secret|token|credential|authorization|api[_-]?key|private[_-]?key|access[_-]?key"
    r"|client[_-]?key|mount[_-]?flags|cookie|session[_-]?key)"
)
_NAME = re.compile(rf"{_WORD}|(?:^|[^a-z])auth$", re.IGNORECASE)
_QUOTED = r"\"(?:[^\"\\]|\\.)*\"|'[^']*'"
_ASSIGNED = re.compile(
    rf"(?P<name>[\w./-]*(?:{_WORD}|\bauth\b)[\w./-]*[\"']?)"
    rf"(?:(?P<colon>\s*:\s*)(?P<rest>{_QUOTED}|\S.*)|(?P<equals>\s*=\s*|\s+(?=[\"']))(?P<value>{_QUOTED}|\S+))",
    re.IGNORECASE,
)
_BLOCK = re.compile(rf"(?P<indent>[ \t-]*)[\"']?[\w./-]*(?:{_WORD}|\bauth\b)[\w./-]*[\"']?\s*:", re.IGNORECASE)
_ANYWHERE = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\A(?:(?!-----BEGIN).)*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL),  # its begin was cut off
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"),
    re.compile(r"\b(?:Bearer|Basic)\s+[\w.~+/=-]{8,}"),
    re.compile(r"(?<=://)[^\s/:@]+:[^\s/@]+(?=@)"),
    re.compile(r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b"),
)


def names_a_secret(name: str) -> bool:
    """Whether what is called so had better not be shown."""
    return _NAME.search(name) is not None


def redact(text: str) -> tuple[str, int]:
    """Return ``text`` without its secrets, and how many places were changed."""
    counter = _Counter()
    try:
        document = json.loads(text)
    except ValueError:
        return counter.text(text), counter.count
    if not isinstance(document, dict | list):
        return counter.text(text), counter.count
    return json.dumps(counter.document(document), indent=1, ensure_ascii=False) + "\n", counter.count


class _Counter:
    """Takes secrets away and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def document(self, value: Any) -> Any:
        match value:
            case dict():
                named = value.get("name")
                is_secret_pair = isinstance(named, str) and names_a_secret(named)  # as in env: [{name, value}]
                return {
                    key: self._hidden(inner)
                    if names_a_secret(key) or (is_secret_pair and key == "value")
                    else self.document(inner)
                    for key, inner in value.items()
                }
            case list():
                return [self.document(inner) for inner in value]
            case str():
                return self.text(value)
            case _:
                return value

    def text(self, text: str) -> str:
        for pattern in _ANYWHERE:
            text, times = pattern.subn(HIDDEN, text)
            self.count += times
        return "".join(self._lines(text.splitlines(keepends=True)))

    def _lines(self, lines: list[str]) -> list[str]:
        result: list[str] = []
        below: int | None = None  # lines that are indented deeper belong to a secret
        for line in lines:
            indent = len(line) - len(line.lstrip())
            if below is not None and (not line.strip() or indent > below or (indent == below and line[indent] == "-")):
                self.count += bool(line.strip())
                continue
            below = None
            block = _BLOCK.match(line)
            if block is not None:
                below = len(block["indent"])
            result.append(_ASSIGNED.sub(self._replaced, line))
        return result

    def _replaced(self, match: re.Match[str]) -> str:
        between = match["colon"] or match["equals"]
        if (match["rest"] or match["value"]) == HIDDEN:
            return match[0]
        self.count += 1
        return f"{match['name']}{between}{HIDDEN}"

    def _hidden(self, value: Any) -> Any:
        if value in (None, "", [], {}):  # that nothing is set says something
            return value
        self.count += 1
        return HIDDEN

"""What an installation remembers of itself, in a file on the node. Pure."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import Any

import msgspec

from ubnode.install.layout import Component


@dataclass(frozen=True, slots=True)
class Record:
    """What we own on a node: file -> hash of what we wrote, links, folders that we made.

    It is not ``whole`` while an installation is under way, and stays so if that is killed: then the next one goes
    through all that cannot be seen, such as which release a unit was started from.
    """

    components: frozenset[Component] = frozenset()
    files: Mapping[str, str] = field(default_factory=dict)
    links: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()
    imports: bool = False
    whole: bool = True

    @property
    def paths(self) -> frozenset[str]:
        return self.links | self.files.keys()

    def text(self) -> str:
        content = {
            "version": 1,
            "components": sorted(self.components),
            "files": dict(sorted(self.files.items())),
            "links": sorted(self.links),
            "folders": sorted(self.folders),
            "imports": self.imports,
            "whole": self.whole,
        }
        return json.dumps(content, indent=1) + "\n"

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> "Record":
        """Return what ``text`` wrote.

        Raises:
            ValueError: it says something else than that.
        """
        if missing := [each.name for each in fields(cls) if each.name not in content]:
            raise ValueError(f"{', '.join(missing)} is missing")
        try:
            record = msgspec.convert(content, cls)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        for path in (*record.paths, *record.folders):
            if not path.startswith("/") or "\0" in path or ".." in PurePosixPath(path).parts:
                raise ValueError(f"{path!r} is no path of ours")
        return record


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

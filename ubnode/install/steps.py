"""The changes that an installation is made of. Each is done wholly or not at all, and knows its undo.

Paths are the node's own (absolute, as seen on the node); ``node.py`` places them below the node's root. What is removed
is only put aside, until all is done: so a removal has an undo like everything else.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Folder:
    """Make a folder, or remove it if it is empty: one that others have put something into stays."""

    path: str
    there: bool = True
    mode: int = 0o755

    def undo(self) -> "Folder":
        return replace(self, there=not self.there)

    def __str__(self) -> str:
        return f"make folder {self.path}" if self.there else f"remove folder {self.path} if it is empty"


@dataclass(frozen=True, slots=True)
class Release:
    """Copy the bundle to its own folder, aside first and then by one rename; or put the release aside."""

    version: str
    there: bool = True

    def undo(self) -> "Release":
        return replace(self, there=not self.there)

    def __str__(self) -> str:
        return f"{'place' if self.there else 'remove'} release {self.version} in /opt/ub-node"


@dataclass(frozen=True, slots=True)
class SetLink:
    """Point a symbolic link to ``target`` by one rename; ``None`` stands for no link."""

    path: str
    target: str | None
    was: str | None

    def undo(self) -> "SetLink":
        return replace(self, target=self.was, was=self.target)

    def __str__(self) -> str:
        return f"link {self.path} -> {self.target}" if self.target else f"remove link {self.path}"


@dataclass(frozen=True, slots=True)
class SetFile:
    """Give a file this content by one rename; ``None`` stands for no file."""

    path: str
    content: str | None
    was: str | None
    mode: int = 0o644

    def undo(self) -> "SetFile":
        return replace(self, content=self.was, was=self.content)

    def __str__(self) -> str:
        if self.content is None:
            return f"remove {self.path}"
        return f"{'write' if self.was is None else 'change'} {self.path}"


@dataclass(frozen=True, slots=True)
class PutAside:
    """Take something of our own state out of sight, by one rename; it is removed when all is done."""

    path: str
    aside: bool = True

    def undo(self) -> "PutAside":
        return replace(self, aside=not self.aside)

    def __str__(self) -> str:
        return f"remove {self.path}" if self.aside else f"put {self.path} back"


@dataclass(frozen=True, slots=True)
class Run:
    """Start a program of the node and wait for it; ``back`` takes its effect back. No command: nothing is done."""

    command: tuple[str, ...]
    back: tuple[str, ...] = ()

    def undo(self) -> "Run":
        return replace(self, command=self.back, back=self.command)

    def __str__(self) -> str:
        return f"run {' '.join(self.command)}" if self.command else ""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take back what a daemon has published or changed on the node; a daemon that runs again does it again."""

    daemon: str
    away: bool = True

    def undo(self) -> "Withdraw":
        return replace(self, away=not self.away)

    def __str__(self) -> str:
        return f"take back what {self.daemon} has made of the node"


Step = Folder | Release | SetLink | SetFile | PutAside | Run | Withdraw

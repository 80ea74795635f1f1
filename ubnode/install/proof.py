"""After taking off: the node is looked at again, and every step must have lasted."""

import os
from collections.abc import Iterable

from ubhost.errors import HostFault
from ubnode.install.layout import RELEASES
from ubnode.install.node import Node
from ubnode.install.steps import Folder, PutAside, Release, SetFile, SetLink, Step


def prove(node: Node, steps: Iterable[Step]) -> str:
    """Return a sentence that says how much was looked at.

    Raises:
        HostFault: something is there again that was taken away; the message names all.
    """
    looked_at = [step for step in steps if isinstance(step, SetFile | SetLink | PutAside | Release | Folder)]
    wrong = [str(step) for step in looked_at if not lasted(node, step)]
    if wrong:
        raise HostFault(f"done, but the node is not as it was: {', '.join(wrong)} had no lasting effect")
    return f"looked at again: {len(looked_at)} files, links and folders are as they were before the installation"


def lasted(node: Node, step: Step) -> bool:
    """Whether the node is as ``step`` left it. A folder with something in it belongs to others, too, and may stay."""
    match step:
        case SetFile(path, None) | SetLink(path, None) | PutAside(path, True):
            return not os.path.lexists(node.place(path))
        case SetFile(path, content):
            there = node.place(path)
            return there.is_file() and there.read_text(encoding="utf-8", errors="surrogateescape") == content
        case Release(version, False):
            return not node.place(f"{RELEASES}/{version}").exists()
        case Folder(path, False):
            there = node.place(path)
            return not there.is_dir() or any(there.iterdir())
        case _:
            return True

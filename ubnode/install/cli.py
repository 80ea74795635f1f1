"""``ubnode install``, ``ubnode upgrade``, ``ubnode uninstall``."""

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ubhost.arguments import Parser
from ubhost.doctor import report
from ubhost.doctor.findings import Finding, Verdict
from ubhost.doctor.look import look
from ubhost.errors import InvalidRequest
from ubhost.roots import Roots
from ubhost.version import version as own_version
from ubnode.install.layout import CNI_BIN, KUBELET, Component, Places
from ubnode.install.node import Node
from ubnode.install.operations import bring, take_off

_VERSION = re.compile(r"\d[\w.+-]*", re.ASCII)


def parser(command: str) -> argparse.ArgumentParser:
    about = {
        "install": "put plugins on this node, or bring those that are there to this release",
        "upgrade": "bring what is installed to this release",
        "uninstall": "take plugins off this node and give its files back",
    }[command]
    parser = Parser(prog=f"ubnode {command}", description=f"{about.capitalize()}.")
    if command != "upgrade":
        every = ", ".join(Component)
        parser.add_argument(
            "components",
            nargs="+" if command == "install" else "*",
            type=_component,
            metavar="COMPONENT",
            help=f"{every}{' (all that are installed)' if command == 'uninstall' else ''}",
        )
    parser.add_argument("--node-root", type=Path, default=Path("/"), metavar="DIR", help="the node's root folder (/)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, change nothing")
    parser.add_argument("--cni-bin-dir", default=CNI_BIN, metavar="DIR", help=f"({CNI_BIN})")
    parser.add_argument("--kubelet-dir", default=KUBELET, metavar="DIR", help=f"({KUBELET})")
    if command == "install":
        help_beside = "leave other plugins that are installed alone, and take the release that they have"
        parser.add_argument("--beside", action="store_true", help=help_beside)
    if command == "uninstall":
        parser.add_argument("--purge", action="store_true", help="remove configuration files that were edited, too")
        parser.add_argument("--force", action="store_true", help="even while pods hold devices or volumes")
    else:
        parser.add_argument("--from", dest="bundle", type=Path, metavar="DIR", help="the bundle to install (this one)")
    return parser


def install(argv: Sequence[str]) -> int:
    options = parser("install").parse_args(argv)
    return _bring(options, options.components, beside=options.beside)


def upgrade(argv: Sequence[str]) -> int:
    return _bring(parser("upgrade").parse_args(argv), ())


def uninstall(argv: Sequence[str]) -> int:
    options = parser("uninstall").parse_args(argv)
    take_off(
        Node(_root(options)),
        options.components,
        _places(options),
        print,
        purge=options.purge,
        force=options.force,
        dry_run=options.dry_run,
    )
    return 0


def _bring(options: argparse.Namespace, components: Iterable[Component], *, beside: bool = False) -> int:
    bundle, version = _bundle(options.bundle)
    root = _root(options)
    places = _places(options)
    bring(Node(root, bundle), version, components, places, print, beside=beside, dry_run=options.dry_run)
    if root.resolve() == Path("/"):  # of a node that is mounted here, nobody answers
        for line in misfits(report.examine(look(Roots(root)))):
            print(line)
    return 0


def misfits(findings: Iterable[Finding]) -> Iterator[str]:
    """Say which versions of others do not go with ours. They may be put right later: it is no failure."""
    for finding in findings:
        is_of_versions = finding.check.startswith("version-") or finding.check.endswith("-generation")
        if is_of_versions and finding.verdict in (Verdict.PROBLEM, Verdict.WARNING):
            yield f"{finding.verdict.value}: {finding.title}: {finding.cause}; next: {finding.next_step}"


def _root(options: argparse.Namespace) -> Path:
    root: Path = options.node_root
    if not root.is_dir():
        raise InvalidRequest(f"--node-root {root} is not a folder")
    return root


def _component(name: str) -> Component:
    try:
        return Component(name)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(Component)}") from None


def _bundle(given: Path | None) -> tuple[Path, str]:
    """The bundle to install, and its version."""
    if given is None:
        if not getattr(sys, "frozen", False):
            raise InvalidRequest("this program was not started from a bundle: name one with --from")
        return Path(sys.executable).parent, own_version()
    try:
        version = (given / "_internal" / "VERSION").read_text(encoding="ascii").strip()
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidRequest(f"{given} is not a bundle: it has no _internal/VERSION") from None
    except UnicodeDecodeError:
        version = ""
    if not _VERSION.fullmatch(version):
        raise InvalidRequest(f"{given} is not a bundle: what {given / '_internal' / 'VERSION'} holds is no version")
    return given.resolve(), version


def _places(options: argparse.Namespace) -> Places:
    for flag, path in (("--cni-bin-dir", options.cni_bin_dir), ("--kubelet-dir", options.kubelet_dir)):
        if not os.path.isabs(path) or ".." in Path(path).parts:  # noqa: PTH117 - the node's path, not ours
            raise InvalidRequest(f"{flag} {path} is not an absolute path")
    return Places(cni_bin=options.cni_bin_dir.rstrip("/"), kubelet=options.kubelet_dir.rstrip("/"))

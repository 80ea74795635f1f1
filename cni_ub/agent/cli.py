"""``ubnode conf``: what the agent does, or would do, with the node's CNI configuration."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cni_ub.agent import confplan
from cni_ub.agent.conf import ConfGenerator
from cni_ub.agent.config import AgentConfig
from cni_ub.agent.settings import ConfMode, Settings
from ubhost import config
from ubhost.arguments import Parser
from ubhost.errors import UbError
from ubhost.roots import Roots
from ubhost.show.table import table


def main(argv: Sequence[str]) -> int:
    """Run ``ubnode conf``; return 0."""
    arguments = _parser().parse_args(argv)
    settings: Settings = config.load(arguments.config, AgentConfig)
    conf = settings.conf
    if arguments.mode:
        conf = replace(conf, mode=ConfMode(arguments.mode))
    if arguments.folder:
        conf = replace(conf, folder=arguments.folder)
    generator = ConfGenerator(conf, Roots.from_environ())
    if arguments.remove:
        _report("removed", generator.remove_all(), as_json=arguments.json)
    elif conf.mode is ConfMode.NAD:
        print(confplan.net_attach_def(conf, settings.resources[0].name), end="")
    elif arguments.print:
        for path, text in confplan.wanted(generator.look(), conf).items():
            print(f"{generator.folder / path}:", file=sys.stderr)
            print(text.decode(), end="")
    elif arguments.apply:
        _report("changed", generator.update(), as_json=arguments.json)
    else:
        _show(generator, as_json=arguments.json)
    return 0


def _report(what: str, paths: Sequence[Path], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({what: [str(path) for path in paths]}))
        return
    for path in paths:
        print(f"{what} {path}")
    if not paths:
        print(f"nothing {what}")


def _show(generator: ConfGenerator, *, as_json: bool) -> None:
    """List the files as the runtime sees them, first one first, and say what each is."""
    files = sorted(generator.look(), key=lambda found: found.name)
    try:
        primary: str | None = confplan.primary(files).name
    except UbError:
        primary = None
    roles = [_role(found, primary) for found in files]
    if as_json:
        rows = [
            {"file": found.name, "network": found.network, "plugins": found.types, "role": role}
            for found, role in zip(files, roles, strict=True)
        ]
        print(json.dumps({"folder": str(generator.folder), "files": rows}, indent=2))
        return
    listed = [(f.name, f.network, ",".join(f.types), role) for f, role in zip(files, roles, strict=True)]
    print(table(("FILE", "NETWORK", "PLUGINS", "ROLE"), listed))


def _role(found: confplan.Found, primary: str | None) -> str:
    if found.is_ours:
        return "ours"
    if found.problem:
        return f"invalid: {found.problem}"
    return "primary" if found.name == primary else ""


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="ubnode conf", description="show, print, apply or remove ub-cni's part of the node's CNI configuration"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="the agent's configuration (default: none)")
    parser.add_argument("--mode", choices=[mode.value for mode in ConfMode], help="instead of the configured one")
    parser.add_argument("--folder", metavar="DIR", help="instead of the configured one (/etc/cni/net.d)")
    doing = parser.add_mutually_exclusive_group()
    doing.add_argument("--print", action="store_true", help="print what would be written; for nad, what to apply")
    doing.add_argument("--apply", action="store_true", help="write it now")
    doing.add_argument("--remove", action="store_true", help="remove what was written")
    parser.add_argument("--json", action="store_true")
    return parser

"""``ubnode COMMAND …``: finds the command's own module and hands over.

Each command lives with what it is about and is imported only when called, so that ``ubnode show`` does not pay
for gRPC. A command is a function ``(argv: Sequence[str]) -> int`` of its module: ``main``, unless named after a colon.

What fails is one line on stderr, and with ``--json`` a document ``{"error": …}`` on stdout, too: a program reads JSON
from us whatever happens. Exit codes: 0 done, 1 failed or not fit, 2 what was asked for makes no sense.
"""

import contextlib
import importlib
import io
import itertools
import json
import os
import sys
from collections.abc import Sequence

from ubhost.errors import InvalidRequest, UbError
from ubhost.version import version

COMMANDS: dict[str, tuple[str, str]] = {
    "show": ("ubhost.cli", "what was found on this host"),
    "watch": ("ubhost.cli:watch_main", "what changes on this host, as it comes"),
    "doctor": ("ubnode.doctor", "whether UB pods can run on this node, and what to do if not"),
    "sim": ("ubsim.cli", "bring a simulated super-node up or down"),
    "attachments": ("cni_ub.cli", "which pod holds which device"),
    "volumes": ("csi_ub.cli", "volumes on this node"),
    "model": ("csi_ub.models.cli", "versions of a model in a volume: push, switch, roll back"),
    "qos": ("nri_qos.cli", "QoS classes and placement of containers"),
    "conf": ("cni_ub.agent.cli", "ub-cni in the CNI configuration of this node"),
    "bug-report": ("ubnode.bugreport.cli", "one archive of what a maintainer needs, without secrets"),
    "install": ("ubnode.install.cli:install", "put plugins on this node"),
    "upgrade": ("ubnode.install.cli:upgrade", "bring what is installed to the release of this program"),
    "uninstall": ("ubnode.install.cli:uninstall", "take plugins off this node and give its files back"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # not every terminal has all letters, and file names may be any bytes
        sys.stdout.reconfigure(errors="replace")
    try:
        code = _run(arguments)
        _flush()
    except UbError as error:
        code = _failed(arguments, str(error), 2 if isinstance(error, InvalidRequest) else 1)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader of our pipe has seen enough
        code = 0
    except OSError as error:
        code = _failed(arguments, str(error), 1)
    try:
        _flush()
    except OSError:  # what is still buffered would fail again at the end, with a trace
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _flush() -> None:
    if sys.stdout:  # it may be closed from the start
        sys.stdout.flush()


def _run(arguments: Sequence[str]) -> int:
    if not arguments:
        print(_usage(), file=sys.stderr)
        return 2
    name, *rest = arguments
    if name in ("-h", "--help"):
        print(_usage())
        return 0
    if name == "--version":
        print(f"ubnode {version()}")
        return 0
    if name not in COMMANDS:
        print(_usage(), file=sys.stderr)
        raise InvalidRequest("there is no such command")
    module, _, function = COMMANDS[name][0].partition(":")
    return int(getattr(importlib.import_module(module), function or "main")(rest))


def _failed(arguments: Sequence[str], why: str, code: int) -> int:
    print(f"ubnode {arguments[0]}: {why}", file=sys.stderr)
    if any(map(_asks_for_json, itertools.takewhile(lambda argument: argument != "--", arguments))):
        with contextlib.suppress(OSError):  # that may be what failed
            print(json.dumps({"error": why}))
    return code


def _asks_for_json(argument: str) -> bool:
    """Whether it is ``--json``, or a beginning of it that argparse takes for it."""
    word = argument.partition("=")[0]
    return len(word) > len("--") and "--json".startswith(word)


def _usage() -> str:
    lines = "\n".join(f"  {name:<12} {help_}" for name, (_, help_) in COMMANDS.items())
    return f"usage: ubnode COMMAND …\n\n{lines}\n\n`ubnode COMMAND --help` tells more."


if __name__ == "__main__":
    sys.exit(main())

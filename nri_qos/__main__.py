"""``nri-qos``: an NRI plugin that protects online pods and lets offline pods use what is left."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nri-qos", description=__doc__.partition(": ")[2])
    parser.add_argument("--socket", type=Path, metavar="PATH", help="socket of the runtime (/var/run/nri/nri.sock)")
    parser.add_argument("--index", default="90", metavar="NN", help="two digits: plugins are called in this order (90)")
    parser.add_argument("--name", default="ub-qos", help="name shown by the runtime (ub-qos)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration, YAML")
    parser.add_argument("--dry-run", action="store_true", help="decide and report, change nothing")
    parser.add_argument("--restore", action="store_true", help="put back what an earlier run changed, and end")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM; return the exit code: 0 done, 1 failed, 2 usage."""
    parser().parse_args(argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())

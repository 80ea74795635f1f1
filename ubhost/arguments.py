"""The command line of an ``ubnode`` command: a wrong one is an error like any other, told by ``ubnode`` in one way."""

import argparse
import sys
from typing import NoReturn

from ubhost.errors import InvalidRequest


class Parser(argparse.ArgumentParser):
    """argparse as usual, but it ends no program: who asked for JSON must read JSON of wrong usage, too."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        raise InvalidRequest(message)

"""The command line for people."""

import sys

import callers_environment

callers_environment.restore()

from ubnode.__main__ import main  # noqa: E402

sys.exit(main())

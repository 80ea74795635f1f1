"""The node daemon for networking."""

import sys

import callers_environment

callers_environment.restore()

from cni_ub.agent.__main__ import main  # noqa: E402

sys.exit(main())

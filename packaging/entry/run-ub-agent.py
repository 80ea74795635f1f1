"""The node daemon for networking; and, for a ub-cni that finds none, the engine of one call."""

import sys

import callers_environment

callers_environment.restore()

from cni_ub.shim import ONE_CALL  # noqa: E402

if sys.argv[1:2] == [ONE_CALL]:
    from cni_ub.local import main
else:
    from cni_ub.agent.__main__ import main

sys.exit(main())

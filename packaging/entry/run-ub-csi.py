"""The CSI driver."""

import sys

import callers_environment

callers_environment.restore()

from csi_ub.__main__ import main  # noqa: E402

sys.exit(main())

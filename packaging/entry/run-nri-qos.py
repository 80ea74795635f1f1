"""The NRI plugin."""

import sys

import callers_environment

callers_environment.restore()

from nri_qos.__main__ import main  # noqa: E402

sys.exit(main())

"""The CNI plugin: starts fast.

ctypes lies in a folder of its own that is put on the path only here: PyInstaller's bootstrap imports ctypes at every
start when it finds it, which costs 1.7 ms, and only the engine (when no agent answers) has a use for it.
"""

import sys

import callers_environment

callers_environment.restore()
sys.path.append(f"{sys._MEIPASS}/late")

from cni_ub.shim import main  # noqa: E402

sys.exit(main())

"""The CNI plugin: starts fast. Everything that takes time, the engine and its libraries, is in ub-agent beside it."""

import os
import sys

import callers_environment

callers_environment.restore()

from cni_ub.shim import become, main  # noqa: E402

AGENT = os.path.join(os.path.dirname(sys._MEIPASS), "ub-agent")  # noqa: PTH118, PTH120 - pathlib costs milliseconds

code = main(lambda stdin, nonce: become(AGENT, stdin, nonce))
os._exit(code)  # nothing waits in a buffer; taking the interpreter down properly costs half a millisecond

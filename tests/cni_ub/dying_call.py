"""One CNI call that dies at a chosen moment: ``python -m tests.cni_ub.dying_call MOMENT SIGNAL``.

The call runs as in the lone executable. Moments are counted wherever it is about to touch the world or has just done
so: steps, ledger, delegate. At the chosen one the process sends itself the signal. Nothing in the product knows.
"""

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from cni_ub import local
from cni_ub.ipam import Ipam, Running
from cni_ub.node import Node
from ubhost.ledger import Ledger

MOMENTS = {function.__code__ for function in (Node.do, Ledger.write, Ledger.remove, Ipam._start, Running.wait)}


def main() -> int:
    moment, number = int(sys.argv[1]), signal.Signals[sys.argv[2]]
    left = [moment]
    lock = threading.Lock()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if frame.f_code in MOMENTS and event in ("call", "return"):
            with lock:
                left[0] -= 1
                now = left[0] == 0
            if now:
                os.kill(os.getpid(), number)

    stdin = sys.stdin.buffer.read()
    threading.setprofile(watch)
    sys.setprofile(watch)
    code, document = local.run(os.environ, os.urandom(8).hex(), stdin)
    sys.setprofile(None)
    sys.stdout.buffer.write(document)
    return 100 if left[0] > 0 else code  # 100: the call had fewer moments than that


if __name__ == "__main__":
    sys.exit(main())

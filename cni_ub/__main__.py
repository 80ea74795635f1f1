"""``python -m cni_ub``: the CNI executable from a source tree."""

import os
import sys

from cni_ub.shim import main


def _engine(stdin: bytes, nonce: bytes) -> tuple[int, bytes]:
    from cni_ub.local import run  # only who needs it pays for it

    return run(os.environ, nonce.decode(), stdin)


if __name__ == "__main__":
    sys.exit(main(_engine))

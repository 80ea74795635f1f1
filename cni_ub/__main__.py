"""``python -m cni_ub``: the CNI executable."""

import sys

from cni_ub.shim import main

if __name__ == "__main__":
    sys.exit(main())

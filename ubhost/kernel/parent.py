"""Die with the process that started us.

Source: PR_SET_PDEATHSIG(2const). The kernel's notice is of the *thread* that forked: ask for it only where that thread
lives as long as its process.
"""

import ctypes
import os

_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def end_with(parent: int, number: int) -> None:
    """In a child: be sent signal ``number`` when ``parent`` dies; if it is dead already, end at once."""
    if _libc.prctl(_PR_SET_PDEATHSIG, number) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)

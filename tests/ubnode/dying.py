"""A child process that is killed, as by ``kill -9``, just before its n-th change of a file, or start of a program."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator

CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.chmod", "os.utime", "subprocess.Popen"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def deaths(work: Callable[[], object]) -> Iterator[int]:
    """Do ``work`` in children that die at the first, second, ... change; after each death the caller looks.

    Ends when a child got through. Raises AssertionError if ``work`` fails by itself.
    """
    for moment in range(1, 10_000):
        child = os.fork()
        if child == 0:
            _die_at(moment, work)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert os.waitstatus_to_exitcode(status) == 0
            return
        yield moment


def _die_at(moment: int, work: Callable[[], object]) -> None:
    left = [moment]

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event in CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)

import os
import threading

from nri_qos.manners import Manners


def test_every_thread_of_ours_keeps_off_and_comes_back() -> None:
    allowed = os.sched_getaffinity(0)
    manners, ending = Manners(), threading.Event()
    thread = threading.Thread(target=ending.wait)
    thread.start()
    try:
        for avoided in ({min(allowed)}, allowed, set[int]()):
            manners.keep_off(frozenset(avoided))
            for each in (0, thread.native_id or 0):
                assert os.sched_getaffinity(each) == (allowed - avoided or allowed)
    finally:
        ending.set()
        thread.join()
        os.sched_setaffinity(0, allowed)

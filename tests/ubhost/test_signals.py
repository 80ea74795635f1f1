"""A daemon ends when it is told, whenever that is."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
DAEMON = """
from ubhost.signals import until_told
stop = until_told()
print("ready", flush=True)
while not stop.wait(0.000001):
    pass
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_that_is_just_entering_its_wait_hears_the_signal(number: signal.Signals) -> None:
    for _ in range(10):
        with subprocess.Popen([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, cwd=TOP) as daemon:
            assert daemon.stdout
            daemon.stdout.readline()
            daemon.send_signal(number)
            try:
                assert daemon.wait(timeout=60) == 0
            finally:
                daemon.kill()

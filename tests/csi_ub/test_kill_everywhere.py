"""A driver killed at any point of any call leaves a state from which the cluster's next call goes on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.csi_ub import lvm
from tests.csi_ub.driver import REPO, environment
from tests.csi_ub.kill_everywhere import CALLS
from tests.csi_ub.pools import unmount_below

# These are made of the calls above them, whose every line is tried; UB_KILL_EVERY=1 tries all of theirs too.
EVERY = {"inline": "25", "drop-inline": "25", "publish-device": "3", "unpublish-device": "3"} | dict.fromkeys(
    ("attach", "detach", "snapshot", "drop-snapshot", "group", "drop-group", "to-close-to-open", "to-strong"), "7"
)


# Programs are called here, which takes its time: of each call some ten lines, others at each start.
LVM_EVERY = {"create": 67, "snapshot": 47, "drop-snapshot": 37}


@pytest.mark.kernel
@pytest.mark.parametrize(("call", "kind"), [*((call, "dir") for call in CALLS), *((call, "lvm") for call in LVM_EVERY)])
def test_a_driver_killed_at_any_line_leaves_a_state_that_the_next_call_goes_on_from(
    call: str, kind: str, tmp_path: Path
) -> None:
    # A killed process loses nothing that it wrote, flushed or not; in memory the thousands of flushes cost nothing.
    subprocess.run(["mount", "-t", "tmpfs", "none", str(tmp_path)], check=True)
    if ("device" in call or kind == "lvm") and not os.access("/dev/loop-control", os.W_OK):
        pytest.skip("loop devices need the machine's own root")
    try:
        every = os.environ.get("UB_KILL_EVERY", str(LVM_EVERY[call]) if kind == "lvm" else EVERY.get(call, "1"))
        command = [sys.executable, "-m", "tests.csi_ub.kill_everywhere", str(tmp_path), call, every, kind]
        done = subprocess.run(command, cwd=REPO, env=environment(), capture_output=True, text=True, timeout=300)
    finally:
        for path in tmp_path.glob("lvm"):  # before the memory that the devices lie in
            unmount_below(tmp_path / "pool")
            lvm.take_away(path.parent)
        unmount_below(tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > (5 if kind == "lvm" else 20), "the call has more lines than that"

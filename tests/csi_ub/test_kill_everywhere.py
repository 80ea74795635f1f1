"""A driver killed at any point of any call leaves a state from which the cluster's next call goes on."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.csi_ub.driver import REPO, environment
from tests.csi_ub.kill_everywhere import CALLS
from ubhost.kernel import mountinfo, mounts


@pytest.mark.kernel
@pytest.mark.parametrize("call", CALLS)
def test_a_driver_killed_at_any_line_leaves_a_state_that_the_next_call_goes_on_from(call: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.csi_ub.kill_everywhere", str(tmp_path), call]
    done = subprocess.run(command, cwd=REPO, env=environment(), capture_output=True, text=True, timeout=120)
    for mount in reversed(mountinfo.below(mountinfo.read(), tmp_path)):
        mounts.unmount(Path(mount.target))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30, "the call has more lines than that"

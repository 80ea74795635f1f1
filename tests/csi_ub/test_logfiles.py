"""Logs of data daemons: they lie in memory, so they must not grow for ever."""

import os
import shutil
from pathlib import Path

import pytest

from csi_ub import logfiles
from tests.csi_ub.cluster import cluster, daemons, wait
from tests.csi_ub.driver import StartDriver


def test_a_large_log_is_emptied_under_its_writer_and_its_end_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("ab", buffering=0) as daemon:
        daemon.write(b"x" * (2 << 20) + b"what went wrong\n")
        logfiles.trim(log)
        assert log.stat().st_size == 0
        assert (tmp_path / "log.old").read_bytes().endswith(b"what went wrong\n")
        daemon.write(b"and on\n")
        logfiles.trim(log)
    assert log.read_bytes() == b"and on\n"
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1 << 20
    logfiles.trim(tmp_path / "none")


@pytest.mark.kernel
@pytest.mark.skipif(not shutil.which("glusterfsd"), reason="glusterfs-server is not installed")
def test_a_driver_keeps_the_logs_of_its_daemons_small(start: StartDriver) -> None:
    with cluster(start) as nodes:
        volume = nodes[0].create(parameters={"replicas": "3"})
        for node in nodes:
            (log,) = (node.root / "run/ub-node/gluster").glob("*.brick.log")
            (brick,) = daemons(node, "brick")
            fds = [fd for fd in Path(f"/proc/{brick}/fd").iterdir() if fd.readlink() == log]
            flags = [Path(f"/proc/{brick}/fdinfo/{fd.name}").read_text().split()[3] for fd in fds]
            assert flags
            assert all(int(each, 8) & os.O_APPEND for each in flags), "it would leave a hole as large as the old log"
            with log.open("ab") as more:
                more.write(b"x" * (2 << 20))
            wait(lambda log=log: log.stat().st_size < 1 << 20)  # type: ignore[misc]
        nodes[0].delete(volume.volume_id)
        wait(lambda: not list((nodes[0].root / "run/ub-node/gluster").glob(f"{volume.volume_id}*")))

"""Many calls at once, calls that cross, mounts that nobody would see, and thousands of cycles."""

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from csi_ub import propagation
from tests.csi_ub.driver import Driver, StartDriver, refused
from ubhost.errors import Unsupported
from ubhost.kernel import mountinfo

Code = grpc.StatusCode


def mounts_at(path: Path) -> int:
    return len(mountinfo.at(mountinfo.read(), path))


@pytest.mark.kernel
def test_20_pods_at_once_get_the_same_volume(driver: Driver) -> None:
    volume = driver.create()
    driver.stage(volume)
    with ThreadPoolExecutor(20) as pool:
        targets = list(pool.map(lambda i: driver.publish(volume, f"pod{i}"), range(20)))
        assert [mounts_at(target) for target in targets] == [1] * 20
        list(pool.map(lambda i: driver.unpublish(volume, f"pod{i}"), range(20)))
    assert not any(target.exists() for target in targets)


@pytest.mark.kernel
def test_the_same_call_32_times_at_once_mounts_once(driver: Driver) -> None:
    volume = driver.create()
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda _: driver.stage(volume), range(32)))
        list(pool.map(lambda _: driver.publish(volume), range(32)))
        assert mounts_at(driver.staging(volume)) == mounts_at(driver.target(volume)) == 1
        list(pool.map(lambda _: driver.unpublish(volume), range(32)))
        list(pool.map(lambda _: driver.unstage(volume), range(32)))
    assert mounts_at(driver.staging(volume)) == 0


@pytest.mark.kernel
def test_calls_that_cross_end_in_a_state_that_the_last_one_decides(driver: Driver) -> None:
    volume = driver.create()

    def call(number: int) -> grpc.StatusCode:
        calls = (driver.stage, driver.publish, driver.unpublish, driver.unstage)
        try:
            calls[number % 4](volume)
        except grpc.RpcError as error:
            return error.code()
        return Code.OK

    with ThreadPoolExecutor(16) as pool:
        codes = set(pool.map(call, range(200)))
    assert codes <= {Code.OK, Code.ABORTED, Code.FAILED_PRECONDITION}
    driver.unpublish(volume)
    driver.unstage(volume)
    assert mounts_at(driver.staging(volume)) == mounts_at(driver.target(volume)) == 0
    driver.delete(volume.volume_id)


@pytest.mark.kernel
@pytest.mark.parametrize("kind", ["slave", "private"])
def test_mounts_that_pods_would_not_see_are_refused(start: StartDriver, tmp_path: Path, kind: str) -> None:
    if kind == "slave":
        subprocess.run(["mount", "--bind", str(tmp_path), str(tmp_path)], check=True)
        subprocess.run(["mount", "--make-shared", str(tmp_path)], check=True)
    driver = start(within=("unshare", "--mount", "--propagation", kind))
    volume = driver.create()
    with refused(Code.FAILED_PRECONDITION, naming="Bidirectional"):
        driver.stage(volume)
    driver.delete(volume.volume_id)


def test_a_shared_folder_is_good_even_for_a_driver_in_a_container() -> None:
    table = mountinfo.parse(
        "1 0 0:1 / / rw master:1 - overlay o rw\n2 1 0:2 / /var/lib/kubelet rw shared:2 master:1 - ext4 d rw\n"
    )
    propagation.check(table, Path("/var/lib/kubelet/pods"), is_alone=True)
    with pytest.raises(Unsupported, match="/plugins"):
        propagation.check(table, Path("/plugins"), is_alone=False)


@pytest.mark.kernel
def test_hundreds_of_cycles_leave_descriptors_threads_and_memory_flat(driver: Driver) -> None:
    volume = driver.create()
    driver.stage(volume)
    status = Path(f"/proc/{driver.process.pid}")

    def cycle(times: int) -> tuple[int, int, int]:
        for _ in range(times):
            driver.publish(volume)
            driver.unpublish(volume)
        memory = int((status / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return len(list((status / "fd").iterdir())), len(list((status / "task").iterdir())), memory

    before = cycle(200)
    after = cycle(int(os.environ.get("UB_CYCLES", "1000")) - 200)  # 10000 by hand, with -s
    sys.stdout.write(f"descriptors, threads, bytes after 200 cycles {before}, at the end {after}\n")
    assert after[0] <= before[0] + 2
    assert after[1] <= before[1] + 64  # the pool of handlers grows to its size, and no further
    assert after[2] <= before[2] + (4 << 20)


@pytest.mark.kernel
def test_a_repeated_publish_needs_nobody_but_this_node(start: StartDriver) -> None:
    owner, user = start("node0"), start("node1")
    volume = owner.create()
    user.stage(volume)
    target = user.publish(volume)
    owner.kill()
    (owner.pool / "volumes" / volume.volume_id / "volume.json").unlink()
    user.publish(volume)
    assert mounts_at(target) == 1
    user.unpublish(volume)


@pytest.mark.kernel
def test_metrics_tell_calls_pools_and_readiness(start: StartDriver) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    driver = start(config={"metrics_address": address})
    driver.create("a", 10 << 20)
    with pytest.raises(grpc.RpcError):
        driver.create("")

    def get(path: str) -> str:
        with urllib.request.urlopen(f"http://{address}{path}") as answer:
            return str(answer.read().decode())

    text = get("/metrics")
    assert 'csi_ub_calls_total{code="OK",method="CreateVolume"} 1.0' in text
    assert 'csi_ub_calls_total{code="INVALID_ARGUMENT",method="CreateVolume"} 1.0' in text
    assert 'csi_ub_pool_promised_bytes{pool="default"} 1.048576e+07' in text
    assert 'csi_ub_volumes{engine="bind",pool="default",type="filesystem"} 1.0' in text
    ours = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {name.partition("_ub_")[0] for name in ours if not name.startswith(("python_", "process_"))} == {"csi"}
    assert get("/readyz") == get("/healthz") == "ok\n"
    driver.pool.rename(driver.pool.with_name("away"))
    with pytest.raises(urllib.error.HTTPError, match="503") as caught:
        get("/readyz")
    caught.value.close()

"""The files that a configuration sets for a class, in the cgroup tree of a real kernel: written, put back exactly."""

import fnmatch
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from e2e.inside.cri import Container, Runtime
from e2e.inside.programs import BUNDLE, Daemon, daemon, wait_until
from e2e.inside.test_qos import CLASS, HALF, ONE_OWN, start

CGROUPS = Path("/sys/fs/cgroup")
COUNTERS = ("cgroup.procs", "cgroup.threads", "*.pressure", "*.peak", "memory.reclaim", "cgroup.kill")
RESCTRL = Path("/sys/fs/resctrl")
KNOBS = {
    "BE": {
        "cpu.max.burst": "1000",
        "memory.high": "67108864",
        "memory.swap.max": "0",
        "memory.swap.high": "1048576",
        "memory.zswap.max": "0",
        "memory.oom.group": "1",
        "io.weight": "10",
        "io.bfq.weight": "20",
        "io.max vda": "wbps=104857600",
        "rdma.max rxe0": "hca_object=2000",
        "pids.max": "512",
        "hugetlb.2MB.max": "2097152",
    },
    "LS": {"memory.min": "1048576", "memory.low": "16777216", "io.bfq.weight vda": "500", "cpu.max.burst": "20000"},
}
READ_BACK = {
    "io.weight": "default 10",
    "io.bfq.weight": "default 20",
    "io.max vda": "254:0 rbps=max wbps=104857600 riops=max wiops=max",
    "rdma.max rxe0": "rxe0 hca_handle=max hca_object=2000",
    "io.bfq.weight vda": "default 100\n254:0 500",
}  # and the others as they were written
WRITTEN = {
    qos: {key.partition(" ")[0]: READ_BACK.get(key, value) for key, value in files.items()}
    for qos, files in KNOBS.items()
}
Tree = Mapping[str, str]


@pytest.fixture(scope="module", autouse=True)
def devices() -> Iterator[None]:
    """An RDMA device, and the scheduler that has ``io.bfq.weight``."""
    script = """
        modprobe -a bfq rdma_rxe
        cat /sys/block/vda/queue/scheduler >/tmp/scheduler
        echo bfq >/sys/block/vda/queue/scheduler
        ip link add soft type veth peer name peer
        ip link set soft up
        ip link set peer up
        rdma link add rxe0 type rxe netdev soft
    """
    subprocess.run(["sh", "-ec", script], check=True)
    yield
    back = "sed 's/.*\\[\\(.*\\)\\].*/\\1/' /tmp/scheduler >/sys/block/vda/queue/scheduler; ip link delete soft"
    subprocess.run(["sh", "-ec", back], check=True)


def tree() -> Tree:
    """Return what every file of every cgroup says that can be written, but for those that only count."""
    found = {}
    for folder, _, names in os.walk(CGROUPS):
        for path in (Path(folder, name) for name in names):
            is_counter = any(fnmatch.fnmatch(path.name, pattern) for pattern in COUNTERS)
            if path.stat().st_mode & 0o200 and path.stat().st_mode & 0o400 and not is_counter:
                found[str(path.relative_to(CGROUPS))] = text_of(path)
    return found


def text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:  # such as cpuset.cpus.partition of a domain that is not valid
        return f"error {error.errno}"


def differences(before: Tree, after: Tree) -> dict[str, tuple[str | None, str | None]]:
    names = before.keys() | after.keys()
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


@contextmanager
def nri_qos(folder: Path, **settings: object) -> Iterator[Daemon]:
    config = folder / "nri-qos.yaml"
    config.write_text(yaml.safe_dump(settings))
    with daemon("nri-qos", "--config", str(config), env={"UB_ROOT": "/"}) as running:
        running.wait_for("synchronized with the runtime")
        yield running


def restore() -> str:
    done = subprocess.run([BUNDLE / "nri-qos", "--restore"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_written(container: Container, files: Mapping[str, str]) -> None:
    """Wait until the pod's cgroup says all of it: the loop writes once a period."""
    pod = container.cgroup.parent

    def is_written() -> bool:
        return {file: (pod / file).read_text().strip() for file in files} == files

    try:
        wait_until(is_written, "the pod's files say what is configured")
    except AssertionError:
        assert {file: (pod / file).read_text().strip() for file in files} == files
        raise


@pytest.fixture(scope="module")
def pods(containerd: Runtime) -> Iterator[tuple[Container, Container]]:
    """An offline and an online container that were there before nri-qos was; and one that gets a CPU of its own."""
    offline, online, _ = (
        start(containerd, "offline", "BE", HALF),
        start(containerd, "online", "LS", HALF),
        start(containerd, "own", "HLS", ONE_OWN),
    )
    yield offline, online
    containerd.remove_all()


@pytest.fixture
def before(pods: tuple[Container, Container]) -> Iterator[Tree]:
    """What the tree says before nri-qos starts. At the end, whatever the test did, it must say the same again."""
    found = tree()
    yield found
    assert "0 changed by others" in restore()
    assert differences(found, tree()) == {}


def test_every_file_that_is_configured_is_written_and_goes_back(
    pods: tuple[Container, Container], before: Tree, tmp_path: Path
) -> None:
    with nri_qos(tmp_path, knobs=KNOBS) as running:
        check_written(pods[0], WRITTEN["BE"])
        check_written(pods[1], WRITTEN["LS"])
        assert running.said("a cgroup file cannot be written") == 0
    changed = {Path(name).name for name in differences(before, tree())}
    assert changed >= WRITTEN["BE"].keys() | WRITTEN["LS"].keys() | {"cpu.weight", "cpuset.cpus", "cpuset.mems"}


def test_what_is_taken_out_of_the_configuration_goes_back_while_pods_run(
    pods: tuple[Container, Container], before: Tree, tmp_path: Path
) -> None:
    folder = pods[0].cgroup.parent
    said = {file: (folder / file).read_text().strip() for file in WRITTEN["BE"]}
    with nri_qos(tmp_path, knobs=KNOBS):
        check_written(pods[0], WRITTEN["BE"])
    with nri_qos(tmp_path):
        check_written(pods[0], said)


def test_a_limit_that_is_written_is_one_that_holds(
    containerd: Runtime, pods: tuple[Container, Container], before: Tree, tmp_path: Path
) -> None:
    """The kernel does what the file says: no more processes than ``pids.max``."""
    many = ("sh", "-c", "for i in $(seq 30); do sleep 2 & done; wait")
    assert containerd.execute(pods[0], *many)[0] == 0
    with nri_qos(tmp_path, knobs={"BE": {"pids.max": "20"}}, on_exit="restore"):
        check_written(pods[0], {"pids.max": "20"})
        code, said = containerd.execute(pods[0], *many)
        assert code != 0
        assert "fork" in said
    assert containerd.execute(pods[0], *many)[0] == 0


def test_a_burst_that_stands_in_the_way_of_a_limit_is_lowered_and_put_back(
    pods: tuple[Container, Container], tmp_path: Path
) -> None:
    """The kernel takes no quota below a burst, whoever set it."""
    folder = pods[0].cgroup.parent
    (folder / "cpu.max.burst").write_text("100000")
    found = tree()
    with nri_qos(tmp_path):
        wait_until(lambda: not (folder / "cpu.max").read_text().startswith("max"), "the pod has a limit")
        assert (folder / "cpu.max.burst").read_text() == "0\n"
    restore()
    assert differences(found, tree()) == {}
    (folder / "cpu.max.burst").write_text("0")


def test_a_pod_outside_of_the_kubelets_cgroups_changes_nothing_beside_it(
    containerd: Runtime, pods: tuple[Container, Container], tmp_path: Path
) -> None:
    annotations = {CLASS: "BE"}
    pod = containerd.run_pod("stray", annotations=annotations, host_network=True, cgroup_parent="system.slice")
    stray = containerd.run_container(pod)
    assert stray.cgroup.parent.name == "system.slice"
    found = tree()  # the runtime has enabled controllers in the slice by now
    with nri_qos(tmp_path, on_exit="restore"):
        wait_until(lambda: stray.knob("cpu.weight") == "1", "the container has its weight")
        wait_until(lambda: stray.knob("cpuset.cpus") != "", "and its CPUs")
        changed = {name for name in differences(found, tree()) if name.startswith("system.slice")}
        assert {Path(name).parts[1] for name in changed} == {stray.cgroup.name}
    containerd.remove_pod(pod)


def test_a_machine_that_cannot_divide_its_cache_says_so_and_goes_on(
    pods: tuple[Container, Container], before: Tree, tmp_path: Path
) -> None:
    """An emulated processor has no resctrl; where one has, the group and its limits are looked at."""
    subprocess.run(["mount", "-t", "resctrl", "resctrl", RESCTRL], check=False, capture_output=True)
    offline = pods[0]
    with nri_qos(tmp_path, resctrl={"cache": 30}) as running:
        if (RESCTRL / "schemata").exists():
            running.wait_for("cache and memory bandwidth of offline work are limited")
            wait_until(lambda: str(offline.pid) in (RESCTRL / "ub-offline/tasks").read_text().split(), "it is held")
        else:
            running.wait_for("cache and memory bandwidth of offline work are not limited")
        wait_until(lambda: offline.knob("cpu.weight") == "1", "the rest is done")
    restore()
    assert not (RESCTRL / "ub-offline").exists()

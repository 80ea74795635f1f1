"""Who may open a device: a pod that was given it, and no other. By the device cgroup of a real kernel.

The record is written here as ub-csi writes it for a volume of shared memory; the device is an ordinary one.
"""

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.inside.cri import Container, Pod, Runtime
from e2e.inside.programs import Daemon, daemon

NODE = "loop-control"  # opens for whoever may: there is no driver behind it that says no
DEVICE = Path("/dev") / NODE
RECORDS = Path("/run/ub-node/volumes")
PROBE = "mknod /tmp/probe c {major} {minor} && head -c0 /tmp/probe"


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    subprocess.run(["modprobe", "loop"], check=True)
    assert stat.S_ISCHR(DEVICE.stat().st_mode)


@pytest.fixture(scope="module")
def nri_qos() -> Iterator[Daemon]:
    with daemon("nri-qos", env={"UB_ROOT": "/"}) as running:
        running.wait_for("synchronized with the runtime")
        yield running


def grant(pod: Pod, permissions: str = "rw") -> Path:
    """Write what a storage plugin writes before it publishes a volume of the pod's."""
    uid = pod.config.metadata.uid
    RECORDS.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = RECORDS / f"{uid}@memory.json"
    device = {"node": NODE, "permissions": permissions}
    record.write_text(json.dumps({"version": 1, "pod_uid": uid, "devices": [device]}))
    record.chmod(0o600)
    return record


def opens(runtime: Runtime, container: Container) -> tuple[int, str]:
    """Try to open the device from inside: by its number, so that a missing node is no excuse."""
    number = DEVICE.stat().st_rdev
    probe = PROBE.format(major=os.major(number), minor=os.minor(number))
    return runtime.execute(container, "sh", "-c", probe)


def check_may_open(runtime: Runtime, container: Container) -> None:
    code, said = opens(runtime, container)
    assert code == 0, said
    code, said = runtime.execute(container, "head", "-c0", str(DEVICE))
    assert code == 0, said


def check_may_not_open(runtime: Runtime, container: Container) -> None:
    code, said = opens(runtime, container)
    assert code != 0
    assert "Operation not permitted" in said


def test_without_the_plugin_a_record_opens_nothing(runtime: Runtime) -> None:
    """The negative control, and the first test as the plugin is not there yet: the check sees that nothing is given."""
    pod = runtime.run_pod("ungiven", host_network=True)
    record = grant(pod)
    with pytest.raises(AssertionError):
        check_may_open(runtime, runtime.run_container(pod))
    record.unlink()


def test_only_the_containers_of_the_pod_that_was_given_a_device_can_open_it(runtime: Runtime, nri_qos: Daemon) -> None:
    given = runtime.run_pod("given", host_network=True)
    record = grant(given)
    check_may_open(runtime, runtime.run_container(given))
    check_may_open(runtime, runtime.run_container(given, name="second"))
    other = runtime.run_pod("other", host_network=True)
    check_may_not_open(runtime, runtime.run_container(other))
    record.unlink()
    check_may_not_open(runtime, runtime.run_container(given, name="after"))


def test_a_record_that_gives_nothing_opens_nothing(runtime: Runtime, nri_qos: Daemon) -> None:
    pod = runtime.run_pod("hopeful", host_network=True)
    record = grant(pod)
    record.chmod(0o666)
    check_may_not_open(runtime, runtime.run_container(pod, name="anybody-can-write-it"))
    record = grant(pod, "r")
    check_may_not_open(runtime, runtime.run_container(pod, name="it-may-only-be-read"))
    record.write_text(grant(pod).read_text().replace(pod.config.metadata.uid, "somebody-else"))
    check_may_not_open(runtime, runtime.run_container(pod, name="it-names-another-pod"))
    record.unlink()

"""The packages for Debian and for systems with RPM. Needs Go, which installs what makes them."""

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.binary


@pytest.fixture
def another_root(tmp_path: Path) -> list[str]:
    """A command prefix: this machine's root, with changes that go to memory and are forgotten."""
    script = """
        set -e
        mount -t tmpfs none "$0" && cd "$0" && mkdir upper work root
        mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work none root
        mount --rbind /dev root/dev && mount --rbind /proc root/proc
        exec chroot root "$@"
    """
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(tmp_path)]


def test_the_debian_package_comes_upgrades_and_goes_with_what_it_installed(
    release: dict[str, Path], another_root: list[str], tmp_path: Path
) -> None:
    packages = [file for file in release.values() if file.suffix == ".deb"]
    if not packages:
        pytest.skip("no Go here to make packages with")
    script = f"""
        set -e
        cp {packages[0]} /tmp/ub-node.deb
        dpkg --install --force-depends /tmp/ub-node.deb
        ubnode --version
        ubnode install cni agent
        CNI_COMMAND=VERSION /opt/cni/bin/ub-cni </dev/null
        echo broken >/etc/ub-node/agent.yaml
        dpkg --install --force-depends /tmp/ub-node.deb
        dpkg --remove ub-node
        ls -d /opt/ub-node /opt/cni/bin/ub-cni /etc/systemd/system/ub-agent.service /usr/bin/ubnode 2>/dev/null || true
        cat /etc/ub-node/agent.yaml
        dpkg --purge ub-node >&2
        [ ! -e /etc/ub-node ]
    """
    done = subprocess.run([*another_root, "sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "supportedVersions" in done.stdout
    assert "nothing to do" in done.stdout  # the second installation found the node as it should be
    assert done.stdout.splitlines()[-1] == "broken"  # the administrator's file outlives the package
    assert "\n/opt" not in done.stdout
    assert "\n/usr/bin/ubnode" not in done.stdout


def test_the_rpm_carries_the_same_bundle(release: dict[str, Path], bundle: Path) -> None:
    packages = [file for file in release.values() if file.suffix == ".rpm"]
    if not packages:
        pytest.skip("no Go here to make packages with")
    assert packages[0].read_bytes()[:4] == b"\xed\xab\xee\xdb"  # an RPM
    assert (
        abs(packages[0].stat().st_size - next(f for f in release.values() if f.suffix == ".deb").stat().st_size) < 2**20
    )

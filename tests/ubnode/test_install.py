"""Installing, upgrading and uninstalling, on the files of a node below a folder."""

import fcntl
import itertools
import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.ubnode.conftest import Bundle, install, listing, uninstall, upgrade
from ubhost import socketpath
from ubhost.doctor.findings import ok, problem, warning
from ubhost.errors import Busy, Conflict, HostFault, InvalidRequest
from ubnode.install import cli
from ubnode.install.layout import Component, Places
from ubnode.install.node import Node
from ubnode.install.operations import bring, take_off
from ubnode.install.steps import Step

EVERY = [str(component) for component in Component]


def test_the_cni_plugin_is_reached_through_the_current_release(root: Path, bundle: Bundle) -> None:
    install(root, bundle("1.0.0"), "cni")
    assert str((root / "opt/cni/bin/ub-cni").readlink()) == "/opt/ub-node/current/ub-cni"
    assert str((root / "opt/ub-node/current").readlink()) == "1.0.0"
    assert (root / "opt/ub-node/1.0.0/ub-cni").stat().st_mode & 0o111
    assert not list((root / "etc/systemd/system").iterdir())


def test_installing_twice_changes_nothing(root: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    release = bundle("1.0.0")
    install(root, release, *EVERY)
    before = listing(root)
    capsys.readouterr()
    install(root, release, *EVERY)
    assert listing(root) == before
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize("components", [["cni"], ["agent"], ["csi"], ["nri"], EVERY])
def test_uninstalling_gives_every_file_of_the_node_back(root: Path, bundle: Bundle, components: list[str]) -> None:
    before = listing(root)
    install(root, bundle("1.0.0"), *components)
    assert listing(root) != before
    uninstall(root)
    assert listing(root) == before


def test_folders_that_were_made_go_and_folders_that_others_use_stay(tmp_path: Path, bundle: Bundle) -> None:
    root = tmp_path / "bare"
    root.mkdir()
    install(root, bundle("1.0.0"), *EVERY)
    (root / "opt/cni/bin/loopback").write_text("somebody else's")
    uninstall(root)
    assert sorted(listing(root)) == ["opt", "opt/cni", "opt/cni/bin", "opt/cni/bin/loopback"]


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_a_dry_run_tells_exactly_what_is_done_and_changes_nothing(
    root: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    releases = [str(bundle(version)) for version in ("1.0.0", "1.1.0", "1.2.0")]
    calls = [(cli.install, [*EVERY, "--from", releases[0]])]
    calls += [(cli.upgrade, ["--from", release]) for release in releases[1:]]  # the second removes a release
    calls += [(cli.uninstall, ["nri"]), (cli.uninstall, [])]
    for command, arguments in calls:
        before = listing(root)
        command([*arguments, "--node-root", str(root), "--dry-run"])
        assert listing(root) == before
        announced = [line.removeprefix("would ") for line in said(capsys)]
        command([*arguments, "--node-root", str(root)])
        done = [line for line in said(capsys) if not line.startswith(("looked at", "stays"))]
        assert announced == done


def test_an_upgrade_brings_all_components_and_keeps_one_older_release(root: Path, bundle: Bundle) -> None:
    install(root, bundle("1.0.0"), "cni", "nri")
    for version in ("1.1.0", "1.2.0"):
        upgrade(root, bundle(version))
    assert str((root / "opt/ub-node/current").readlink()) == "1.2.0"
    assert sorted(entry.name for entry in (root / "opt/ub-node").iterdir()) == ["1.1.0", "1.2.0", "current"]


def test_the_release_that_ran_before_stays_however_old_it_is(root: Path, bundle: Bundle) -> None:
    """Programs may still run from it."""
    oldest, old, new = bundle("1.0.0"), bundle("1.1.0"), bundle("1.2.0")
    install(root, oldest, "cni")
    upgrade(root, old)
    upgrade(root, oldest)  # back
    upgrade(root, new)
    assert sorted(entry.name for entry in (root / "opt/ub-node").iterdir()) == ["1.0.0", "1.2.0", "current"]


def test_a_downgrade_is_an_upgrade_to_an_older_release(root: Path, bundle: Bundle) -> None:
    old, new = bundle("1.0.0"), bundle("1.1.0")
    for release in (old, new, old):
        install(root, release, "cni")
    assert str((root / "opt/ub-node/current").readlink()) == "1.0.0"


def test_a_running_program_keeps_its_files_during_an_upgrade(root: Path, bundle: Bundle) -> None:
    install(root, bundle("1.0.0"), "cni")
    with (root / "opt/ub-node/1.0.0/ub-cni").open() as running:
        install(root, bundle("1.1.0"), "cni")
        assert running.read().endswith("1.0.0\n")
        assert (root / "opt/ub-node/1.0.0/_internal/VERSION").exists()


def test_an_edited_configuration_survives_upgrade_and_uninstall(
    root: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    install(root, bundle("1.0.0"), "nri")
    config = root / "etc/ub-node/nri.yaml"
    config.write_text("floor: 2\n")
    install(root, bundle("1.1.0"), "nri")
    uninstall(root)
    assert config.read_text() == "floor: 2\n"
    assert "/etc/ub-node/nri.yaml" in capsys.readouterr().out


def test_purge_removes_an_edited_configuration_too(root: Path, bundle: Bundle) -> None:
    before = listing(root)
    install(root, bundle("1.0.0"), "nri")
    (root / "etc/ub-node/nri.yaml").write_text("floor: 2\n")
    uninstall(root, "--purge")
    assert listing(root) == before


def test_a_configuration_that_was_there_before_us_is_never_ours(root: Path, bundle: Bundle) -> None:
    (root / "etc/ub-node").mkdir()
    (root / "etc/ub-node/nri.yaml").write_text("floor: 4\n")
    before = listing(root)
    install(root, bundle("1.0.0"), "nri")
    uninstall(root, "--purge")
    assert listing(root) == before


def test_one_component_can_leave_and_the_others_stay(root: Path, bundle: Bundle) -> None:
    release = bundle("1.0.0")
    install(root, release, "cni")
    only_cni = listing(root)
    install(root, release, "csi", "nri")
    uninstall(root, "csi")
    uninstall(root, "nri")
    now = listing(root)
    assert now.keys() - only_cni.keys() <= {
        "etc/ub-node",
        "etc/containerd/conf.d",
        "var/lib/kubelet/plugins/csi-ub.unifiedbus.com",
    }
    assert (root / "opt/cni/bin/ub-cni").is_symlink()


def test_containerd_1_7_is_told_to_listen_for_plugins_and_told_off_again(root: Path, bundle: Bundle) -> None:
    config = root / "etc/containerd/config.toml"
    before = config.read_text()
    install(root, bundle("1.0.0"), "nri")
    assert config.read_text().startswith('imports = ["/etc/containerd/conf.d/*.toml"]')
    assert config.read_text().endswith(before)
    assert "disable = false" in (root / "etc/containerd/conf.d/90-ub-node-nri.toml").read_text()
    config.write_text(config.read_text() + "# the administrator goes on\n")
    uninstall(root)
    assert config.read_text() == before + "# the administrator goes on\n"
    assert not (root / "etc/containerd/conf.d").exists()


@pytest.mark.parametrize(
    "config",
    ["version = 3\n", 'version = 2\n[plugins."io.containerd.nri.v1.nri"]\ndisable = false\n', None],
)
def test_a_containerd_that_needs_nothing_is_left_alone(root: Path, bundle: Bundle, config: str | None) -> None:
    file = root / "etc/containerd/config.toml"
    file.unlink()
    if config is not None:
        file.write_text(config)
    before = {path: what for path, what in listing(root).items() if path.startswith("etc/containerd")}
    install(root, bundle("1.0.0"), "nri")
    assert {path: what for path, what in listing(root).items() if path.startswith("etc/containerd")} == before


@pytest.mark.parametrize("config", ['imports = ["/etc/containerd/mine.toml"]\n', "imports = []\n", "version = [\n"])
def test_a_containerd_configuration_that_we_cannot_add_to_is_refused_untouched(
    root: Path, bundle: Bundle, config: str
) -> None:
    (root / "etc/containerd/config.toml").write_text(config)
    before = listing(root)
    with pytest.raises(Conflict, match="containerd"):
        install(root, bundle("1.0.0"), "nri")
    assert listing(root) == before


def test_cri_o_gets_a_drop_in(root: Path, bundle: Bundle) -> None:
    (root / "etc/crio").mkdir()
    before = listing(root)
    install(root, bundle("1.0.0"), "nri")
    assert "enable_nri = true" in (root / "etc/crio/crio.conf.d/90-ub-node-nri.conf").read_text()
    uninstall(root)
    assert listing(root) == before


def test_a_plugin_of_the_same_name_that_is_not_ours_is_never_overwritten(root: Path, bundle: Bundle) -> None:
    (root / "opt/cni/bin/ub-cni").write_text("built by hand")
    before = listing(root)
    with pytest.raises(Conflict, match="/opt/cni/bin/ub-cni is there and not ours"):
        install(root, bundle("1.0.0"), "cni", "nri")
    assert listing(root) == before


def test_an_edited_unit_is_refused_by_name(root: Path, bundle: Bundle) -> None:
    install(root, bundle("1.0.0"), "nri")
    unit = root / "etc/systemd/system/nri-qos.service"
    unit.write_text(unit.read_text() + "# mine\n")
    with pytest.raises(Conflict, match=r"nri-qos\.service was edited"):
        install(root, bundle("1.1.0"), "nri")
    assert str((root / "opt/ub-node/current").readlink()) == "1.0.0"


def test_devices_in_pods_hold_the_cni_plugin_on_the_node(root: Path, bundle: Bundle) -> None:
    install(root, bundle("1.0.0"), "cni")
    attachment = root / "var/lib/ub-node/attachments/urma_1.json"
    attachment.parent.mkdir()
    attachment.write_text("{}")
    before = listing(root)
    with pytest.raises(Busy, match="urma_1"):
        uninstall(root)
    assert listing(root) == before
    uninstall(root, "--force")
    assert not (root / "opt/cni/bin/ub-cni").is_symlink()


def test_volumes_outlive_the_driver(root: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    install(root, bundle("1.0.0"), "csi")
    data = root / "var/lib/ub-node/pools/default/volumes/v1/data/weights"
    data.parent.mkdir(parents=True)
    data.write_text("precious")
    uninstall(root)
    assert data.read_text() == "precious"
    assert [entry.name for entry in (root / "var/lib/ub-node").iterdir()] == ["pools"]
    assert "1 volumes" in capsys.readouterr().out


def test_what_the_agent_published_goes_with_the_last_of_networking(root: Path, bundle: Bundle) -> None:
    before = listing(root)
    install(root, bundle("1.0.0"), "cni", "agent")
    published = ("var/run/cdi/unifiedbus.com-urma.json", "etc/kubernetes/node-feature-discovery/features.d/ub-node")
    for path in published:
        (root / path).parent.mkdir(parents=True)
        (root / path).write_text("{}")
    uninstall(root, "agent")
    assert all((root / path).exists() for path in published)  # the plugin may be used without the agent of ours
    uninstall(root, "cni")
    assert listing(root).keys() - before.keys() == {
        "etc/kubernetes", "etc/kubernetes/node-feature-discovery", "etc/kubernetes/node-feature-discovery/features.d",
        "var/run", "var/run/cdi",
    }  # fmt: skip


def test_cgroups_are_put_back_by_the_release_that_changed_them(root: Path, bundle: Bundle) -> None:
    release = bundle("1.0.0")
    script = 'echo "$@" >"$UB_ROOT/called"; mkdir "$UB_ROOT/run/ub-node"; touch "$UB_ROOT/run/ub-node/nri-qos.lock"'
    (release / "nri-qos").write_text(f"#!/bin/sh\n{script}\n")
    install(root, release, "nri")
    uninstall(root)
    assert (root / "called").read_text() == "--restore\n"
    assert not (root / "run/ub-node").exists()


def test_cgroups_that_cannot_be_put_back_keep_nri_qos_installed(root: Path, bundle: Bundle) -> None:
    release = bundle("1.0.0")
    (release / "nri-qos").write_text("#!/bin/sh\necho it runs >&2\nexit 1\n")
    install(root, release, "nri")
    before = listing(root)
    with pytest.raises(HostFault, match="it runs"):
        uninstall(root)
    assert listing(root) == before


def test_links_of_the_node_are_followed_on_the_node(root: Path, bundle: Bundle, tmp_path: Path) -> None:
    (root / "opt/cni/bin/bridge").unlink()
    (root / "opt/cni/bin").rmdir()
    (root / "usr/libexec/cni").mkdir(parents=True)
    (root / "opt/cni/bin").symlink_to("/usr/libexec/cni")  # absolute: the node's, not ours
    (root / "opt/ub-node").symlink_to("../../../../../../../../../../../../data")  # out of the root: stays at the root
    (root / "data").mkdir()
    install(root, bundle("1.0.0"), "cni")
    assert (root / "usr/libexec/cni/ub-cni").is_symlink()
    assert (root / "data/1.0.0/ub-cni").exists()


def test_a_folder_that_is_no_bundle_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="not a bundle"):
        cli.install(["cni", "--node-root", str(root), "--from", str(tmp_path)])


def test_upgrading_nothing_is_refused(root: Path, bundle: Bundle) -> None:
    with pytest.raises(InvalidRequest, match="nothing is installed"):
        upgrade(root, bundle("1.0.0"))


class FailingNode(Node):
    """A node that refuses its n-th step."""

    def __init__(self, root: Path, bundle: Path | None, fails_at: int) -> None:
        super().__init__(root, bundle)
        self.left = fails_at

    def do(self, step: Step) -> None:
        self.left -= 1
        if self.left == 0:
            raise HostFault("the disk is full")
        super().do(step)


def silent(said: str) -> None:
    """Say nothing."""


def fails_at_every_step(root: Path, bundle: Path | None, work: Callable[[Node], None]) -> int:
    """Let ``work`` fail at its first, second, ... step: the node is as before each time; return how often."""
    before = listing(root)
    for fails_at in itertools.count(1):
        node = FailingNode(root, bundle, fails_at)
        try:
            work(node)
        except HostFault:
            assert listing(root) == before, fails_at
        else:
            return fails_at - 1
    raise AssertionError


def test_an_installation_that_fails_at_any_step_leaves_the_node_as_it_was(root: Path, bundle: Bundle) -> None:
    steps = fails_at_every_step(root, bundle("1.0.0"), lambda node: bring(node, "1.0.0", Component, Places(), silent))
    assert steps > 15


def test_an_upgrade_that_fails_at_any_step_leaves_the_release_before(root: Path, bundle: Bundle) -> None:
    install(root, bundle("1.0.0"), *EVERY)
    fails_at_every_step(root, bundle("1.1.0"), lambda node: bring(node, "1.1.0", (), Places(), silent))


def test_an_uninstallation_that_fails_at_any_step_leaves_the_node_installed(root: Path, bundle: Bundle) -> None:
    install(root, bundle("1.0.0"), *EVERY)
    assert fails_at_every_step(root, None, lambda node: take_off(node, [], Places(), silent)) > 15


def test_two_installers_are_never_at_work_on_one_node(root: Path, bundle: Bundle) -> None:
    release = bundle("1.0.0")
    before = listing(root)
    with Node(root).alone(), pytest.raises(Busy, match="another ubnode"):
        install(root, release, "cni")
    assert listing(root) == before
    install(root, release, "cni")
    state = os.open(root / "var/lib/ub-node", os.O_RDONLY)  # all that an installer in a container sees of the node
    fcntl.flock(state, fcntl.LOCK_EX)
    with pytest.raises(Busy, match="another ubnode"):
        uninstall(root)
    os.close(state)
    uninstall(root)
    assert listing(root) == before


def test_a_containerd_configuration_that_is_a_link_is_not_written_through(root: Path, bundle: Bundle) -> None:
    config = root / "etc/containerd/config.toml"
    config.rename(root / "etc/containerd/the-real.toml")
    config.symlink_to("the-real.toml")
    before = listing(root)
    with pytest.raises(Conflict, match=r"config\.toml is a link: put at its head imports"):
        install(root, bundle("1.0.0"), "nri")
    assert listing(root) == before


def test_uninstalling_looks_at_the_node_again_and_says_so(
    root: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    install(root, bundle("1.0.0"), *EVERY)
    capsys.readouterr()
    uninstall(root)
    assert "files, links and folders are as they were before the installation" in capsys.readouterr().out


def test_uninstalling_from_a_node_that_has_nothing_says_so(
    root: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listing(root)
    uninstall(root)
    uninstall(root, "nri")
    assert said(capsys) == ["nothing is installed here", "not installed: nri"]
    assert listing(root) == before


def test_what_comes_back_at_once_is_named(root: Path, bundle: Bundle) -> None:
    class Haunted(Node):
        def sweep(self, paths: Iterable[str]) -> None:
            super().sweep(paths)
            if not (plugin := self.root / "opt/cni/bin/ub-cni").is_symlink():
                plugin.write_text("somebody's")

    install(root, bundle("1.0.0"), "cni")
    with pytest.raises(HostFault, match="not as it was: remove link /opt/cni/bin/ub-cni"):
        take_off(Haunted(root), (), Places(), print)


def test_nothing_is_taken_from_under_an_agent_that_runs(root: Path, bundle: Bundle) -> None:
    """As when a chart's cleanup begins while the agent's pod still ends: the cleanup is tried again later."""
    install(root, bundle("1.0.0"), "cni")
    before = listing(root)
    path = root / "run/ub-node/agent.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as agent, socketpath.short(path) as near:
        agent.bind(near)
        agent.listen()
        with pytest.raises(Busy, match="ub-agent runs"):
            uninstall(root)
    path.unlink()
    path.parent.rmdir()
    assert listing(root) == before
    uninstall(root)


def test_versions_that_do_not_go_with_ours_are_told_and_nothing_else_is() -> None:
    findings = (
        problem("version-containerd", "containerd 1.6 is too old", "1.7 is needed", "update containerd"),
        warning("ub-generation", "another driver", "known: OLK-6.6", "compare"),
        problem("cgroups", "no cgroup v2", "booted so", "boot otherwise"),
        ok("version-kernel", "kernel 6.12"),
    )
    assert list(cli.misfits(findings)) == [
        "problem: containerd 1.6 is too old: 1.7 is needed; next: update containerd",
        "warning: another driver: known: OLK-6.6; next: compare",
    ]

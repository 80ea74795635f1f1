"""``kill -9`` before every change that an installer makes: the node is never half, and the next call mends it."""

import subprocess
from pathlib import Path

from tests.ubnode.conftest import Bundle, install, listing, uninstall, upgrade
from tests.ubnode.dying import deaths

SOME = ("cni", "nri")  # links, a unit, configuration of ours and of others: every kind of step


def says(root: Path) -> str | None:
    """What the CNI plugin of a node answers, as a runtime would start it; None if there is none."""
    link = root / "opt/cni/bin/ub-cni"
    if not link.is_symlink():
        return None
    program = root / "opt/ub-node" / (root / "opt/ub-node/current").readlink() / link.readlink().name
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout.strip()


def test_a_killed_installation_is_finished_by_the_next_and_goes_without_a_trace(root: Path, bundle: Bundle) -> None:
    before, release = listing(root), bundle("1.0.0")
    install(root, release, *SOME)
    whole = listing(root)
    uninstall(root)
    for moment in deaths(lambda: install(root, release, *SOME)):
        assert says(root) in (None, "ub-cni 1.0.0")
        if moment % 2:
            install(root, release, *SOME)
            assert listing(root) == whole, moment
        uninstall(root)
        assert listing(root) == before, moment


def test_a_killed_upgrade_leaves_a_plugin_that_works_and_is_finished_by_the_next(root: Path, bundle: Bundle) -> None:
    old, new = bundle("1.0.0"), bundle("1.1.0")
    install(root, old, *SOME)
    upgrade(root, new)
    whole = listing(root)

    def again() -> None:
        uninstall(root)
        install(root, old, *SOME)

    again()
    for moment in deaths(lambda: upgrade(root, new)):
        assert says(root) in ("ub-cni 1.0.0", "ub-cni 1.1.0"), moment
        upgrade(root, new)
        assert listing(root) == whole, moment
        again()


def test_a_killed_uninstallation_is_finished_by_the_next_or_taken_back_by_an_installation(
    root: Path, bundle: Bundle
) -> None:
    before, release = listing(root), bundle("1.0.0")
    install(root, release, *SOME)
    whole = listing(root)
    for moment in deaths(lambda: uninstall(root)):
        assert says(root) in (None, "ub-cni 1.0.0")
        if moment % 2:
            uninstall(root)
            assert listing(root) == before, moment
        install(root, release, *SOME)
        assert listing(root) == whole, moment

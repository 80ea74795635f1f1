"""``python -m e2e``: the built executables on a real node, a QEMU guest with containerd.

    python -m e2e                   every test; results in build/e2e/
    python -m e2e -k csi            the tests whose names match, as in pytest
    python -m e2e run COMMAND       one fresh guest, COMMAND in its shell, what it prints here
    python -m e2e image             build the guest's image only

Guests run one at a time on a machine: a second call waits.
"""

import argparse
import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from e2e import image, results
from e2e.errors import HarnessError
from e2e.machine import QEMU, Machine, Spec
from e2e.payload import payload

REPO = Path(__file__).parents[1]
OUTPUT = REPO / "build" / "e2e"
TESTS_S = 2100.0
PYTEST = ("-p", "no:cacheprovider", "--import-mode=importlib", "-W", "error", "-ra", "--color=no", "--durations=10")
INSIDE_ENV = {
    "PYTHONPATH": "/mnt/payload:/mnt/payload/proto:/usr/lib/ub-e2e/python",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_DEBUG_TEMPROOT": "/var/tmp",  # the first unit with a /tmp of its own starts what empties /tmp at boot
    **{key: value for key, value in os.environ.items() if key == "UB_E2E_LONG"},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 when all passed, 1 when a test failed, 2 when the harness could not run them."""
    options = parser().parse_args(argv)
    try:
        check_programs()
        guest = image.ensure(say)
        if options.command == "image":
            print(guest.folder)
            return 0
        if options.bundle:
            os.environ["UB_E2E_BUNDLE"] = str(options.bundle.absolute())
        if not bundle().exists():
            raise HarnessError(f"{bundle()} does not exist; make build makes it")
        with one_at_a_time():
            if options.command == "run":
                return run_command(guest, " ".join(options.arguments))
            return run_tests(guest, options.k)
    except HarnessError as error:
        print(f"e2e: {error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m e2e", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("--bundle", type=Path, metavar="DIR", help="what is tested (dist/ub-node)")
    made.add_argument("-k", metavar="EXPRESSION", default="", help="only tests that match, as in pytest")
    commands = made.add_subparsers(dest="command")
    commands.add_parser("image", help="build the guest's image only")
    commands.add_parser("run", help="run a command in a fresh guest").add_argument(
        "arguments", nargs=argparse.REMAINDER
    )
    return made


def bundle() -> Path:
    """Return the folder of the executables under test."""
    return Path(os.environ.get("UB_E2E_BUNDLE", REPO / "dist" / "ub-node"))


def check_programs() -> None:
    needed = (QEMU, "mmdebstrap", "mke2fs", "cpio", "xz", "setpriv")
    if missing := [name for name in needed if not shutil.which(name)]:
        raise HarnessError(f"missing programs: {', '.join(missing)}; packaging/setup e2e installs them as root")


def show(data: bytes) -> None:
    """Pass on what the guest prints."""
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def say(message: str) -> None:
    print(f"e2e: {message}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """A guest wants both cores of a small machine; two at once make each other's deadlines fail."""
    with (image.cache_folder() / "guest.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another guest runs; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def parts() -> list[tuple[Path, str]]:
    """Return what goes to the guest: the executables, the tests that run there, and what those import of ours."""
    kubelet = [f"ubsim/{file.name}" for file in (REPO / "ubsim").glob("kubelet*.py")]
    ours = ("e2e/inside", "proto", *kubelet, "ubhost/socketpath.py")
    before = os.environ.get("UB_E2E_BEFORE")  # an older release, for the drills that upgrade
    older = [(Path(before).absolute(), "ub-node-before")] if before else []
    return [(bundle(), "ub-node"), *older, *((REPO / path, path) for path in ours)]


def run_command(guest: image.Image, command: str) -> int:
    with payload(*parts()) as disk, Machine(Spec(guest, disk), OUTPUT / "run") as machine:
        say(f"the guest is up after {machine.boot_s:.1f} s")
        return abs(machine.run("sh", "-c", command, timeout_s=TESTS_S, env=INSIDE_ENV, seen=show).exit)


def run_tests(guest: image.Image, expression: str) -> int:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    started = time.monotonic()
    run_inside(guest, expression)
    run_outside(expression)
    outcome = results.merge(OUTPUT, "junit.xml")
    say(f"took {time.monotonic() - started:.0f} s; results and logs are in {OUTPUT}")
    for failure in outcome.failures:
        print(f"FAILED {failure}")
    print(f"e2e: {outcome.passed} passed, {len(outcome.failures)} failed, {outcome.skipped} skipped")
    return 1 if outcome.failures or not outcome.passed else 0


def run_inside(guest: image.Image, expression: str) -> None:
    """Run the tests of ``e2e/inside`` in one guest and fetch what they left."""
    pytest = ["python3", "-m", "pytest", *PYTEST]
    chosen = ["-k", expression] if expression else []
    with payload(*parts()) as disk, Machine(Spec(guest, disk), OUTPUT) as machine:
        say(f"one node is up after {machine.boot_s:.1f} s")
        done = machine.run(
            *(*pytest, *chosen, "--junitxml=/tmp/results/inside.xml", "/mnt/payload/e2e/inside"),
            timeout_s=TESTS_S,
            env=INSIDE_ENV,
            seen=show,
        )  # fmt: skip
        machine.fetch("/tmp/results", OUTPUT)
        machine.fetch("/var/log", OUTPUT / "node0-log")
    if done.exit not in (0, 1, 5):
        raise HarnessError(f"pytest in the guest ended with {done.exit}")


def run_outside(expression: str) -> None:
    """Run the tests of ``e2e/outside`` here; they start the guests they need."""
    command = [sys.executable, "-m", "pytest", *PYTEST, f"--junitxml={OUTPUT}/outside.xml", "e2e/outside"]
    chosen = ["-k", expression] if expression else []
    done = subprocess.run([*command, *chosen], cwd=REPO, check=False)
    if done.returncode not in (0, 1, 5):
        raise HarnessError(f"pytest for the tests outside the guest ended with {done.returncode}")


if __name__ == "__main__":
    sys.exit(main())

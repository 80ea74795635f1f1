"""Start the programs of others: data daemons and their tools.

They get a clean environment: a packaged driver carries libraries of its own, which must not reach them. A daemon
outlives the driver; nothing here waits for one or ends one by its name. Where systemd runs, a daemon gets a scope of
its own: stopping the driver's service ends everything in that service's cgroup, and pods would lose their files.
"""

import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from csi_ub.reasons import Unreachable
from ubhost.errors import HostFault, Unsupported

SYSTEM_FOLDERS = "/usr/sbin:/sbin:/usr/local/sbin"  # searched whatever PATH says: a runtime may leave them out
_SYSTEMD = Path("/run/systemd/system")  # there if systemd runs this machine, sd_booted(3)


def find(program: str) -> str:
    """Return the path of a program.

    Raises:
        Unsupported: it is not installed.
    """
    path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SYSTEM_FOLDERS}")
    if path is None:
        raise Unsupported(f"{program} is not installed on this node")
    return path


def run(
    command: Sequence[str], *, timeout_s: float = 20, is_report: bool = False, keeps: int = subprocess.DEVNULL
) -> str:
    """Run a program to its end (a daemon: until it is in the background); return what it printed.

    Of one that makes a report the warnings are left out, which it writes to stderr. ``keeps`` is a descriptor that
    stays open in it: a lock that it holds on, should this process be killed. It is its stdin, as LVM closes all others.

    Raises:
        Unsupported: it is not installed.
        HostFault: it failed; the message ends with what it said last.
        Unreachable: it took too long.
    """
    program = find(command[0])
    try:
        done = subprocess.run(
            [program, *command[1:]],
            stdin=keeps,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if is_report else subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment(),
            cwd="/",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"{' '.join(command[:3])} has not ended within {timeout_s:g} s") from error
    except OSError as error:
        raise HostFault(f"{command[0]} did not run: {error}") from error
    if done.returncode:
        raise HostFault(f"{command[0]} failed with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


def has_systemd(systemd: Path = _SYSTEMD) -> bool:
    """Whether systemd runs this machine, and can be asked from here."""
    return systemd.is_dir() and shutil.which("systemd-run") is not None


def apart(command: Sequence[str], systemd: Path = _SYSTEMD) -> list[str]:
    """Return the command that starts a daemon outside of the driver's own service, if there are services."""
    if not has_systemd(systemd):
        return list(command)
    name = Path(command[0]).name
    unit = f"ub-csi-{name}-{secrets.token_hex(4)}"
    scope = ["--scope", "--quiet", "--collect", f"--unit={unit}", f"--description={name} for volumes of ub-csi"]
    return ["systemd-run", *scope, "--", *command]


def environment() -> dict[str, str]:
    """Return the environment for the programs of others: without the libraries of a packaged driver."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("LD_LIBRARY_PATH", "_PYI", "CSI_"))}
    if "LD_LIBRARY_PATH_ORIG" in os.environ:
        clean["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH_ORIG"]
    return clean


def is_running(pid_file: Path, argument: str) -> int | None:
    """Return the process that ``pid_file`` names if it runs with ``argument``; a number alone may be reused."""
    try:
        pid = int(pid_file.read_text(encoding="ascii"))
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if os.fsencode(argument) in arguments else None
